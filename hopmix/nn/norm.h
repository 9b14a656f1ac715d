// Root-mean-square normalization (arXiv 1910.07467).
#pragma once

#include "hopmix/nn/mixer.h"

namespace hopmix::nn {

/// y = x / sqrt(mean(x^2) + 1e-6) * weight over the last dimension. Computed in float32 for
/// bfloat16.
class RmsNorm : public torch::nn::Module {
 public:
  explicit RmsNorm(int64_t width) { weight = register_parameter("weight", torch::ones(width)); }

  Tensor forward(const Tensor& x) {
    const Tensor wide = x.scalar_type() == torch::kBFloat16 ? x.to(torch::kFloat32) : x;
    return torch::rms_norm(wide, {x.size(-1)}, weight.to(wide.scalar_type()), 1e-6);
  }

  Tensor weight;  // [width]
};

}  // namespace hopmix::nn

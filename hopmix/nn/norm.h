// Root-mean-square normalization (arXiv 1910.07467).
#pragma once

#include "hopmix/nn/mixer.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

/// y = x / sqrt(mean(x^2) + 1e-6) * weight over the last dimension. Computed in float32 for
/// bfloat16.
class RmsNorm : public torch::nn::Module {
 public:
  explicit RmsNorm(int64_t width) { weight = register_parameter("weight", torch::ones(width)); }

  Tensor forward(const Tensor& x) {
    const Tensor wide = x.scalar_type() == torch::kBFloat16 ? x.to(torch::kFloat32) : x;
    const Tensor rows = wide.dim() == 3 ? wide : wide.reshape({1, -1, wide.size(-1)});
    return ops::rms_norm(rows, weight.to(wide.scalar_type())).view_as(wide);
  }

  Tensor weight;  // [width]
};

}  // namespace hopmix::nn

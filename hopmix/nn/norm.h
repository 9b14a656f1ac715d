// Root-mean-square normalization (arXiv 1910.07467).
#pragma once

#include <cmath>

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

/// x / sqrt(|x|^2 + 1e-6) over the last dimension.
inline Tensor normalize_rows(const Tensor& x) {
  const double width = static_cast<double>(x.size(-1));
  const Tensor weight = torch::full({x.size(-1)}, 1 / std::sqrt(width), x.options());
  return ops::rms_norm(x.reshape({1, -1, x.size(-1)}), weight, 1e-6 / width).view(x.sizes());
}

/// RMSNorm of each head with weights shared by all heads, times SiLU(gate), as in gated linear
/// attention (arXiv 2312.06635) before its output map.
class GatedHeadNorm : public RmsNorm {
 public:
  using RmsNorm::RmsNorm;  // width of a head

  /// x [B,T,H,D], gate [B,T,H*D] -> [B,T,H*D], in the type of the gate.
  Tensor forward(const Tensor& x, const Tensor& gate) {
    const Tensor normalized = RmsNorm::forward(x).view_as(gate);
    return (normalized * torch::silu(gate)).to(gate.scalar_type());
  }
};

}  // namespace hopmix::nn

#include "hopmix/nn/short_convolution.h"

#include <cmath>

#include "hopmix/base/error.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

ShortConvolution::ShortConvolution(int64_t width, const ShortConvolutionConfig& config)
    : config_(config) {
  if (config.taps < 1 || config.taps > 32) {
    throw Error("conv = " + std::to_string(config.taps) + ": must be from 1 to 32");
  }
  weight = register_parameter("weight", torch::empty({width, config.taps}));
  const double bound = 1 / std::sqrt(static_cast<double>(config.taps));
  torch::nn::init::uniform_(weight, -bound, bound);
  if (config.bias) bias = register_parameter("bias", torch::zeros(width));
}

Tensor ShortConvolution::forward(const Tensor& x, const std::optional<Tensor>& cu_seqlens) {
  const auto as_input = [&](const Tensor& t) { return t.to(x.scalar_type()); };
  const auto added = config_.bias ? std::optional(as_input(bias)) : std::nullopt;
  return ops::short_convolution(x, as_input(weight), added, config_.silu, cu_seqlens);
}

Tensor ShortConvolution::prefill(const Tensor& x, State& state, const std::string& name) {
  Tensor& last = state.tensors.at(name);
  const Tensor window = torch::cat({last, x}, 1);
  last = window.slice(1, x.size(1)).clone();  // clone: a view would keep the older tokens too
  return forward(window).slice(1, config_.taps - 1);
}

Tensor ShortConvolution::step(const Tensor& x, State& state, const std::string& name) {
  return prefill(x.unsqueeze(1), state, name).squeeze(1);
}

}  // namespace hopmix::nn

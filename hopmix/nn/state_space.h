// Initialization of state-space layers.
#pragma once

#include "hopmix/nn/torch.h"

#include <cmath>

namespace hopmix::nn {

/// x with softplus(x) = y > 0.
inline torch::Tensor inverse_softplus(const torch::Tensor& y) {
  return y + torch::log(-torch::expm1(-y));
}

/// Step sizes of `channels`, log-uniform in [0.001, 0.1] (arXiv 2206.11893, section 4).
inline torch::Tensor random_step_sizes(int64_t channels) {
  return torch::exp(torch::rand(channels) * (std::log(0.1) - std::log(0.001)) + std::log(0.001));
}

}  // namespace hopmix::nn

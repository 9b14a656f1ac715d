// Steps of sequences at different positions (Mixer::step_each).
#pragma once

#include <vector>

#include "hopmix/nn/torch.h"

namespace hopmix::nn {

/// Calls step(b), [1,...], for each of `count` sequences in turn -> [count,...].
template <typename Step>
torch::Tensor by_sequence(size_t count, const Step& step) {
  std::vector<torch::Tensor> rows;
  for (size_t b = 0; b < count; ++b) rows.push_back(step(b));
  return torch::cat(rows);
}

}  // namespace hopmix::nn

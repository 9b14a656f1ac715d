// The matrix that each head of a linear recurrence carries from token to token.
#pragma once

#include <algorithm>

#include "hopmix/nn/mixer.h"

namespace hopmix::nn {

/// state["S"] [B,heads,keys,values], zero, float32 for narrower parameters: it sums over all time.
struct MatrixState {
  int64_t heads, keys, values;

  void init(int64_t batch, torch::TensorOptions options, State& state) const {
    const auto type = options.dtype() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    state.tensors["S"] = torch::zeros({batch, heads, keys, values}, options.dtype(type));
  }
  /// Of one sequence, beside parameters of `element` bytes.
  int64_t bytes(int64_t element) const {
    return heads * keys * values * std::max<int64_t>(element, 4);
  }
};

}  // namespace hopmix::nn

// States of recurrences are float64 for float64 parameters and float32 otherwise, because bfloat16
// states drift.
#pragma once

#include "hopmix/nn/torch.h"

namespace hopmix::nn {

inline torch::ScalarType state_type(torch::ScalarType parameters) {
  return parameters == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

/// Converts to the type a recurrence uses: float32 (or float64), whatever the rest of the layer
/// uses.
inline torch::Tensor as_state(const torch::Tensor& t) { return t.to(state_type(t.scalar_type())); }

}  // namespace hopmix::nn

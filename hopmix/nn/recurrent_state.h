// States of recurrences are float64 for float64 parameters, else float32: a bfloat16 one drifts.
#pragma once

#include "hopmix/nn/torch.h"

namespace hopmix::nn {

inline torch::ScalarType state_type(torch::ScalarType parameters) {
  return parameters == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

/// Options of a state beside parameters of these.
inline torch::TensorOptions state_options(const torch::TensorOptions& parameters) {
  return parameters.dtype(state_type(c10::typeMetaToScalarType(parameters.dtype())));
}

inline int64_t state_element_size(const torch::TensorOptions& parameters) {
  return static_cast<int64_t>(state_options(parameters).dtype().itemsize());
}

/// What a recurrence takes as float32 (or float64) whatever the rest of the layer is.
inline torch::Tensor as_state(const torch::Tensor& t) { return t.to(state_type(t.scalar_type())); }

}  // namespace hopmix::nn

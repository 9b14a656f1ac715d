// Arguments that may be absent: initial states, biases, gradients of outputs no loss asks for.
#pragma once

#include <optional>

#include "hopmix/ops/tensors.h"

namespace hopmix::ops {

using Maybe = const std::optional<Tensor>&;

/// As autograd hands it over: undefined for absent.
inline std::optional<Tensor> defined_or_none(const Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

inline std::optional<Tensor> contiguous_if(Maybe t) {
  return t ? std::optional(t->contiguous()) : std::nullopt;
}

/// Null where there is none.
template <typename T>
const T* read_if(Maybe t) {
  return t ? read<T>(*t) : nullptr;
}

/// Null where undefined.
template <typename T>
const T* read_defined(const Tensor& t) {
  return t.defined() ? read<T>(t) : nullptr;
}
template <typename T>
T* write_defined(const Tensor& t) {
  return t.defined() ? write<T>(t) : nullptr;
}

/// A state, or what is kept in the type of sums as states are.
template <typename T>
const kernels::Accumulator<T>* read_state(Maybe state) {
  return read_if<kernels::Accumulator<T>>(state);
}

}  // namespace hopmix::ops

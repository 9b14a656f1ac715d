// From tensors to the raw pointers of the kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::ops {

using at::Tensor;

template <size_t N>
using Tensors = std::array<Tensor, N>;

template <typename T>
const T* read(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

template <typename T>
T* write(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

/// Null where a gradient is not wanted.
template <typename T>
T* write_if(bool wanted, const Tensor& t) {
  return wanted ? write<T>(t) : nullptr;
}

/// Kernels read contiguous memory; inputs may have any strides.
template <size_t N>
Tensors<N> contiguous(Tensors<N> all) {
  for (Tensor& t : all) t = t.contiguous();
  return all;
}

/// Calls f.template operator()<T>() with the storage type of `dtype`, which has been checked to be
/// one of these.
template <typename F>
void with_storage_type(at::ScalarType dtype, const F& f) {
  if (dtype == at::kFloat) {
    f.template operator()<float>();
  } else if (dtype == at::kDouble) {
    f.template operator()<double>();
  } else {
    f.template operator()<kernels::Bfloat16>();
  }
}

}  // namespace hopmix::ops

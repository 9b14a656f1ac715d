// A linear map of many rows, y = x W^T + b as in a layer, or several maps of the same rows at once:
// each output is contiguous for its reader, and x is read once. Sums are float for bfloat16. The
// division of work, and so the bits, do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// Up to this many rows, the weight is read in place: copying it would take longer than it saves.
inline constexpr int64_t kFewRows = 96;

/// x [rows, inputs].
template <typename T>
struct LinearInputs {
  const T* x;
  int64_t rows, inputs;
};

/// One map: W [outputs, inputs], b [outputs] or null, y [rows, outputs].
template <typename T>
struct LinearMap {
  const T *weight, *bias;
  int64_t outputs;
  T* y;
};

/// dy [rows, outputs], or null for 0. dW = dy^T x, db = the sum of the rows of dy; null if not
/// wanted.
template <typename T>
struct LinearMapGradient {
  const T* weight;
  int64_t outputs;
  const T* dy;
  T *dweight, *dbias;
};

template <typename T>
void linear_forward(const LinearInputs<T>& in, const std::vector<LinearMap<T>>& maps);

/// dx [rows, inputs] = the sum of dy W over the maps, in order; null if not wanted.
template <typename T>
void linear_backward(const LinearInputs<T>& in, const std::vector<LinearMapGradient<T>>& maps,
                     T* dx);

}  // namespace hopmix::kernels

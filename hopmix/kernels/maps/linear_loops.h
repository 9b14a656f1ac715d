// A linear map of a few rows, as dot products with the rows of the weight in place, compiled for
// every instruction set.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// The number of rows whose dot products share each load of the weight.
inline constexpr int64_t kDotRows = 4;

template <typename T>
struct LinearLoops {
  using A = Accumulator<T>;
  /// y[m * ldy + n] = x_m . w_n for m < rows <= kDotRows and n < outputs; x [rows, inputs], w
  /// [outputs, inputs].
  void (*dots)(int64_t rows, int64_t outputs, int64_t inputs, const A* x, const T* w, A* y,
               int64_t ldy);
};

template <typename T>
LinearLoops<T> linear_loops();

}  // namespace hopmix::kernels

// The loops of rms_norm over a block of rows, compiled for every instruction set.
#pragma once

#include "hopmix/kernels/maps/rms_norm.h"

namespace hopmix::kernels {

/// Rows [begin, end) of the input.
struct RmsNormRows {
  int64_t begin, end;
};

template <typename T>
struct RmsNormLoops {
  using A = Accumulator<T>;
  void (*forward)(const RmsNormInputs<T>&, const RmsNormRows&, T* y);
  /// dx unless null; dweight [width] unless null: the sum over these rows is added to it.
  void (*backward)(const RmsNormInputs<T>&, const RmsNormRows&, const T* grad_y, T* dx, A* dweight);
};

template <typename T>
RmsNormLoops<T> rms_norm_loops();

}  // namespace hopmix::kernels

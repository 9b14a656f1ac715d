// The time loop of linear_recurrence over a block of channels, compiled for every instruction set.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// Channels of one sequence; token t of a tensor lies at t * stride.
template <typename T>
struct ChannelBlock {
  using A = Accumulator<T>;
  int64_t length, stride, width;
  const T *a, *x;
  const A* initial;  // [width], or null for zeros
  T* y;              // written by forward()
  A* state;          // [width], written by forward()
  A* exact;          // [length, width], written by states(): y before it was rounded
};

template <typename T>
struct ChannelGradients {
  using A = Accumulator<T>;
  const T *y, *grad_y;  // grad_y may be null
  const A* grad_state;  // [width] or null
  T *a, *x;             // written unless null
  A* initial;           // [width], written unless null
};

template <typename T>
struct LinearRecurrenceLoops {
  void (*forward)(const ChannelBlock<T>&);
  void (*states)(const ChannelBlock<T>&);
  /// Reads block.exact instead of y if T rounds.
  void (*backward)(const ChannelBlock<T>&, const ChannelGradients<T>&);
};

template <typename T>
LinearRecurrenceLoops<T> linear_recurrence_loops();

}  // namespace hopmix::kernels

// The loops of short_convolution over a piece of a sequence and a block of channels, compiled for
// every instruction set.
#pragma once

#include "hopmix/kernels/scan/short_convolution.h"

namespace hopmix::kernels {

/// Tokens [begin, end) of a sequence of `length`; token t of a tensor lies at t * stride.
template <typename T>
struct ConvolutionPiece {
  using A = Accumulator<T>;
  int64_t begin, end, length, stride;
  int64_t width;  // a multiple of kPad
  int64_t taps;
  bool silu;
  const A* weight;  // [taps + 1] rows: what weighs the token j back, then the bias
  int64_t weight_stride;
  const T* x;
};

template <typename T>
struct ShortConvolutionLoops {
  using A = Accumulator<T>;
  void (*forward)(const ConvolutionPiece<T>&, T* y);
  /// dx unless null; sums [taps + 1] rows (weight_stride) in the layout of weight, unless null.
  void (*backward)(const ConvolutionPiece<T>&, const T* grad_y, T* dx, A* sums);
};

template <typename T>
ShortConvolutionLoops<T> short_convolution_loops();

}  // namespace hopmix::kernels

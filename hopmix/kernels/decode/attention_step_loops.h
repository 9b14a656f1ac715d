// The loops of attention_step, compiled for every instruction set and selected at run time.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// Rows of one key/value head in a buffer: row r is at data + (slots ? slots[r] : r) * stride.
template <typename T>
struct HeldRows {
  const T* data;
  const int32_t* slots;
  int64_t stride, width;
};

template <typename T>
struct AttentionStepLoops {
  using A = Accumulator<T>;
  /// out[r] = x . row r for r in [begin, end). x is padded with zeros (padded.h).
  void (*dots)(const HeldRows<T>&, const A* x, int64_t begin, int64_t end, A* out);
  /// p = softmax of p[0 .. n); p is aligned to a cache line, with room for a multiple of kPad.
  void (*softmax)(A* p, int64_t n);
  /// y += sum of p[r] row r for r in [begin, end).
  void (*sum)(const HeldRows<T>&, const A* p, int64_t begin, int64_t end, A* y);
};

template <typename T>
AttentionStepLoops<T> attention_step_loops();

}  // namespace hopmix::kernels

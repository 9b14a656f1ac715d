// The linear recurrence with its memory cut at block edges, two blocks back.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. There is one state per sequence (N in total),
/// in the accumulator type.
template <typename T>
struct SlidingWindowInputs {
  const T* a;                           // [B, T, E]
  const T* x;                           // [B, T, E]
  const Accumulator<T>* initial_state;  // [N, 2, E], or null for zero
  int64_t width;                        // E
  int64_t block;                        // tokens of a block, at least 1
  int64_t start;                        // position of each sequence's first token, at least 0
  const Sequences& sequences;
};

/// Output gradients, each with the shape of its input; null skips one.
template <typename T>
struct SlidingWindowGradients {
  T* a = nullptr;
  T* x = nullptr;
  Accumulator<T>* initial_state = nullptr;
};

/// y_t = a_t y_{t-1} + x_t, started from 0 at the beginning of the block before that of t: token t
/// sees from `block` + 1 to 2 `block` tokens. Position p is in block p / `block`. y [B, T, E];
/// state [N, 2, E] is y of the last token, and y of it when started at the beginning of its own
/// block. To continue from it, pass as `start` the position after that token.
template <typename T>
void sliding_window_recurrence(const SlidingWindowInputs<T>& in, T* y, Accumulator<T>* state);

/// Gradients from grad_y [B, T, E] and grad_state [N, 2, E], either of which may be null for zero.
/// `y` is the result of sliding_window_recurrence().
template <typename T>
void sliding_window_recurrence_backward(const SlidingWindowInputs<T>& in, const T* y,
                                        const T* grad_y, const Accumulator<T>* grad_state,
                                        const SlidingWindowGradients<T>& out);

}  // namespace hopmix::kernels

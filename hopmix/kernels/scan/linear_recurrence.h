// The diagonal linear recurrence y_t = a_t y_{t-1} + x_t, per channel: the basis of gated linear
// recurrences, RG-LRU (arXiv 2402.19427, equation 4) and diagonal state-space models.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. There is one state per sequence (N in total;
/// N = B unless packed), in the accumulator type, because a bfloat16 state would drift.
template <typename T>
struct LinearRecurrenceInputs {
  const T* a;                           // [B, T, E]
  const T* x;                           // [B, T, E]
  const Accumulator<T>* initial_state;  // [N, E], or null for zero
  int64_t width;                        // E
  const Sequences& sequences;
};

/// Output gradients, each with the shape of its input; null skips one.
template <typename T>
struct LinearRecurrenceGradients {
  T* a = nullptr;
  T* x = nullptr;
  Accumulator<T>* initial_state = nullptr;
};

/// y [B, T, E] and the last state of each sequence [N, E]; an empty sequence returns its initial
/// state.
template <typename T>
void linear_recurrence(const LinearRecurrenceInputs<T>& in, T* y, Accumulator<T>* state);

/// Gradients from grad_y [B, T, E] and grad_state [N, E], either of which may be null for zero. `y`
/// is the result of linear_recurrence().
template <typename T>
void linear_recurrence_backward(const LinearRecurrenceInputs<T>& in, const T* y, const T* grad_y,
                                const Accumulator<T>* grad_state,
                                const LinearRecurrenceGradients<T>& out);

}  // namespace hopmix::kernels

// The selective state-space recurrence of Mamba (Gu and Dao 2023, arXiv 2312.00752), with a state
// of S numbers per channel.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

/// Tokens per piece. The backward starts each piece from a state stored by the forward, so that no
/// other states are stored.
inline constexpr int64_t kScanPiece = 64;

/// Contiguous inputs; T is float, double or Bfloat16. Parameters and states (one per sequence, N in
/// total) have the accumulator type.
template <typename T>
struct SelectiveScanInputs {
  const T *u, *delta;                   // [B, T, E]
  const Accumulator<T>* a;              // [E, S]
  const T *b, *c;                       // [B, T, S]
  const Accumulator<T>* d;              // [E], or null for zero
  const Accumulator<T>* initial_state;  // [N, E, S], or null for zero
  int64_t width, states;                // E, S
  const Sequences& sequences;
};

/// Output gradients, each with the shape of its input; null skips one.
template <typename T>
struct SelectiveScanGradients {
  T *u = nullptr, *delta = nullptr;
  Accumulator<T>* a = nullptr;
  T *b = nullptr, *c = nullptr;
  Accumulator<T>* d = nullptr;
  Accumulator<T>* initial_state = nullptr;
};

/// The number of rows stored by the forward, each [S, padded(E)]: enough for any N sequences with
/// this many tokens in total, so that the shape is known without their bounds.
template <typename Size>
Size scan_checkpoint_rows(const Size& tokens, const Size& sequences) {
  return tokens / kScanPiece + sequences;
}

/// With a_t = exp(delta_t A): h_t = a_t h_{t-1} + delta_t u_t B_t, y_t = h_t C_t + D u_t. y [B, T,
/// E], state [N, E, S] after the last token of each sequence; `checkpoints` [rows, S, padded(E)]
/// unless null.
template <typename T>
void selective_scan(const SelectiveScanInputs<T>& in, T* y, Accumulator<T>* state,
                    Accumulator<T>* checkpoints);

/// Gradients from grad_y [B, T, E] and grad_state [N, E, S], either of which may be null for zero.
template <typename T>
void selective_scan_backward(const SelectiveScanInputs<T>& in, const Accumulator<T>* checkpoints,
                             const T* grad_y, const Accumulator<T>* grad_state,
                             const SelectiveScanGradients<T>& out);

}  // namespace hopmix::kernels

// Recurrences with a matrix state, selected by their gates:
//
//   S' = diag(e^g_t) S_{t-1},   S_t = S' + k_t u_t^T,   o_t = scale S_t^T q_t
//
// with u = v (linear_attention.h) or, with beta, u = beta (v - S'^T k), the delta rules
// (delta_rule.h). g is one number per head, one per key channel, or 0.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16, `tokens` counts over batch and time. There is
/// one state per sequence, N in total.
template <typename T>
struct MatrixStateInputs {
  const T* q;                           // [tokens, H, DK]
  const T* k;                           // [tokens, G, DK]
  const T* v;                           // [tokens, G, DV]
  const T* log_decay;                   // [tokens, H], or with a number a key channel
  bool channels;                        //   [tokens, H, DK]; null for none
  const T* beta;                        // [tokens, H]; null for outer products
  const Accumulator<T>* initial_state;  // [N, H, DK, DV], or null for zero
  int64_t heads, kv_heads;              // H, G
  int64_t key_width, value_width;       // DK, DV
  double scale;
  const Sequences& sequences;
};

/// Output gradients, each with the shape of its input; null skips one.
template <typename T>
struct MatrixStateGradients {
  T *q = nullptr, *k = nullptr, *v = nullptr, *log_decay = nullptr, *beta = nullptr;
  Accumulator<T>* initial_state = nullptr;
};

}  // namespace hopmix::kernels

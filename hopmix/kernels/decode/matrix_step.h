// One token of a recurrence with a matrix state, as in decoding: what ops/chunked_heads.h computes
// by chunks, for sequences of one token alone.
//
//   S' = diag(e^g) S,   S_new = S' + k u^T,   o = scale S_new^T q
//
// with u = v for outer products (linear_attention, ssd, gla) and u = beta (v - S'^T k) for the
// delta rules.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16, `tokens` counts over batch and time. States
/// are one a sequence, N of them.
template <typename T>
struct MatrixStepInputs {
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

/// o [tokens, H, DV] and state [N, H, DK, DV] of the sequences of one token; what belongs to others
/// is left as it is. `state` may be `initial_state` itself: then it is updated in place, to the
/// same bits.
template <typename T>
void matrix_step(const MatrixStepInputs<T>& in, T* o, Accumulator<T>* state);

}  // namespace hopmix::kernels

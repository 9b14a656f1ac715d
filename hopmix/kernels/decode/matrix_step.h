// One token of a recurrence with a matrix state, for decoding: the computation of
// chunked/chunked_heads.h for sequences of one token.
//
//   S' = diag(e^g) S,   S_new = S' + k u^T,   o = scale S_new^T q
//
// with u = v for outer products (linear_attention, ssd, gla) and u = beta (v - S'^T k) for the
// delta rules.
#pragma once

#include "hopmix/kernels/chunked/matrix_state.h"

namespace hopmix::kernels {

/// o [tokens, H, DV] and state [N, H, DK, DV] of the sequences of one token; entries of other
/// sequences are left unchanged. `state` may be `initial_state` itself, which is then updated in
/// place, with the same bits.
template <typename T>
void matrix_step(const MatrixStateInputs<T>& in, T* o, Accumulator<T>* state);

}  // namespace hopmix::kernels

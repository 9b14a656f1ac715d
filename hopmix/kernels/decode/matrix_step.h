// One token of a recurrence with a matrix state, as in decoding: what
// chunked/chunked_heads.h computes by chunks, for sequences of one token alone.
//
//   S' = diag(e^g) S,   S_new = S' + k u^T,   o = scale S_new^T q
//
// with u = v for outer products (linear_attention, ssd, gla) and u = beta (v - S'^T k) for the
// delta rules.
#pragma once

#include "hopmix/kernels/chunked/matrix_state.h"

namespace hopmix::kernels {

/// o [tokens, H, DV] and state [N, H, DK, DV] of the sequences of one token; what belongs to others
/// is left as it is. `state` may be `initial_state` itself: then it is updated in place, to the
/// same bits.
template <typename T>
void matrix_step(const MatrixStateInputs<T>& in, T* o, Accumulator<T>* state);

}  // namespace hopmix::kernels

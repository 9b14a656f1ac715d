// Linear attention, SSD and gated linear attention: the recurrences of matrix_state.h without beta,
// and without decay, with one decay per head, or with one per key channel.
#pragma once

#include "hopmix/kernels/chunked/matrix_state.h"

namespace hopmix::kernels {

/// o [tokens, H, DV] and the state [N, H, DK, DV] after the last token of each sequence.
template <typename T>
void linear_attention(const MatrixStateInputs<T>& in, T* o, Accumulator<T>* state);

/// Gradients from grad_o [tokens, H, DV] and grad_state [N, H, DK, DV], either of which may be null
/// for zero.
template <typename T>
void linear_attention_backward(const MatrixStateInputs<T>& in, const T* grad_o,
                               const Accumulator<T>* grad_state,
                               const MatrixStateGradients<T>& out);

}  // namespace hopmix::kernels

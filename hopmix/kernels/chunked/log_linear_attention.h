// Log-linear attention (Guo et al. 2025, arXiv 2506.04761), with the transition of one decay a head
// or, with beta, of the gated delta rule; the levels are those of fenwick.h.
#pragma once

#include "hopmix/kernels/chunked/matrix_state.h"

namespace hopmix::kernels {

/// Contiguous inputs. The recurrence decays by head and has no initial state.
template <typename T>
struct LogLinearInputs {
  MatrixStateInputs<T> recurrence;
  const T* level_scales;  // [tokens, H, levels]
  int64_t levels;         // at least fenwick_levels(longest sequence)
};

/// Where the gradients go, each of its input's shape; null skips one.
template <typename T>
struct LogLinearGradients {
  MatrixStateGradients<T> recurrence;
  T* level_scales = nullptr;
};

/// o [tokens, H, DV]
template <typename T>
void log_linear_attention(const LogLinearInputs<T>& in, T* o);

/// Gradients from grad_o [tokens, H, DV].
template <typename T>
void log_linear_attention_backward(const LogLinearInputs<T>& in, const T* grad_o,
                                   const LogLinearGradients<T>& out);

}  // namespace hopmix::kernels

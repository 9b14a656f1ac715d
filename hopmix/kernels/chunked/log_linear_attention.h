// Log-linear attention (Guo et al. 2025, arXiv 2506.04761), with one decay per head or, with beta,
// the gated delta rule as transition; levels are those of fenwick.h.
#pragma once

#include "hopmix/kernels/chunked/matrix_state.h"

namespace hopmix::kernels {

/// Contiguous inputs. Decays are per head, and there is no initial state.
template <typename T>
struct LogLinearInputs {
  MatrixStateInputs<T> recurrence;
  const T* level_scales;  // [tokens, H, levels]
  int64_t levels;         // at least fenwick_levels(longest sequence)
};

/// Output gradients, each with the shape of its input; null skips one.
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

// The generalized linear recurrence divided by itself applied to ones (arXiv 2605.31367 leaves its
// overflow open), solved in the log domain, where nothing can overflow.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"
#include "hopmix/kernels/rows/rows.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. Coefficients are positive and given by their
/// logarithms: any finite number, or -inf for a term that is absent. In a packed batch B = 1, and
/// log_alpha and log_beta hold the reads of one sequence after another (ReadLayout).
template <typename T>
struct GlrNormalizedInputs {
  const T* log_alpha_diag;  // [B, H, T]
  const T* log_alpha;       // [B, H, nnz]
  const T* log_beta;        // [B, H, nnz]
  const T* x;               // [B, T, H, D]
  int64_t heads;            // H
  int64_t width;            // D
  const Sequences& sequences;
  const Rows& rows;
  const ReadLayout& reads;
};

/// Where the gradients go, each of its input's shape; null skips one.
template <typename T>
struct GlrNormalizedGradients {
  T* log_alpha_diag = nullptr;
  T* log_alpha = nullptr;
  T* log_beta = nullptr;
  T* x = nullptr;
};

/// z is the recurrence on ones and y the recurrence on x divided by it:
///   z_i     = alpha_ii + sum_j (alpha_ij + beta_ij z_j)
///   z_i y_i = alpha_ii x_i + sum_j (alpha_ij x_j + beta_ij z_j y_j)
/// so y_i is the average of x_i, x_j and y_j under the softmax of log alpha_ii, log alpha_ij and
/// log beta_ij + log z_j. A row of absent terms has y_i = 0 and log z_i = -inf, and is absent to
/// its readers. y [B, T, H, D], log_z [B, T, H]; every entry is written. Logarithms are summed in
/// double. Time O(nnz D) a head, memory O(T D) a thread.
template <typename T>
void glr_normalized(const GlrNormalizedInputs<T>& in, T* y, Accumulator<T>* log_z);

/// Gradients from grad_y [B, T, H, D] and grad_log_z [B, T, H]; `y` is what glr_normalized() gave.
/// An absent term has gradient 0. Same cost.
template <typename T>
void glr_normalized_backward(const GlrNormalizedInputs<T>& in, const T* y, const T* grad_y,
                             const Accumulator<T>* grad_log_z,
                             const GlrNormalizedGradients<T>& out);

}  // namespace hopmix::kernels

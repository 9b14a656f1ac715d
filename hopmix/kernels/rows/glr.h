// Generalized linear recurrence with explicit coefficients on a pattern (arXiv 2605.31367, equation
// 1).
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"
#include "hopmix/kernels/rows/rows.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. In a packed batch B = 1, and alpha and beta
/// hold the reads of one sequence after another (ReadLayout).
template <typename T>
struct GlrInputs {
  const T* alpha_diag;  // [B, H, T]
  const T* alpha;       // [B, H, nnz]
  const T* beta;        // [B, H, nnz]
  const T* x;           // [B, T, H, D]
  int64_t heads;        // H
  int64_t width;        // D
  const Sequences& sequences;
  const Rows& rows;
  const ReadLayout& reads;
};

/// Where the gradients go, each of its input's shape; null skips one.
template <typename T>
struct GlrGradients {
  T* alpha_diag = nullptr;
  T* alpha = nullptr;
  T* beta = nullptr;
  T* x = nullptr;
};

/// y_i = alpha_diag_i x_i + sum over j in row i of (alpha_ij x_j + beta_ij y_j). y [B, T, H, D],
/// every entry written. Time O(nnz D) a head, memory O(T D) a thread.
template <typename T>
void glr(const GlrInputs<T>& in, T* y);

/// Gradients from grad_y [B, T, H, D]; `y` is what glr() gave. Same cost.
template <typename T>
void glr_backward(const GlrInputs<T>& in, const T* y, const T* grad_y, const GlrGradients<T>& out);

}  // namespace hopmix::kernels

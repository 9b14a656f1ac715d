// Generalized linear recurrence whose coefficients are one softmax over its direct and recurrent
// terms together: every output is a convex combination of inputs, so it is bounded with no
// condition.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"
#include "hopmix/kernels/rows/rows.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. Query head h reads key/value head h / (H /
/// G). d, d_self and g are logits: any finite number, or -inf for terms that are absent.
template <typename T>
struct GlrSoftmaxInputs {
  const T* q;           // [B, T, H, DK]
  const T* k;           // [B, T, G, DK]
  const T* v;           // [B, T, G, DV]
  const T* d;           // [B, T, H]
  const T* d_self;      // [B, T, H]
  const T* g;           // [B, T, H]
  int64_t heads;        // H, a multiple of G
  int64_t kv_heads;     // G
  int64_t key_width;    // DK
  int64_t value_width;  // DV
  double scale;
  bool gate_on_read;  // g_j instead of g_i
  const Sequences& sequences;
  const Rows& rows;
};

/// Where the gradients go, each of its input's shape; null skips one.
template <typename T>
struct GlrSoftmaxGradients {
  T* q = nullptr;
  T* k = nullptr;
  T* v = nullptr;
  T* d = nullptr;
  T* d_self = nullptr;
  T* g = nullptr;
};

/// With s_ij = scale q_i . k_j, over the tokens j of row i:
///   y_i = a_ii v_i + sum_j (a_ij v_j + b_ij y_j),
///   (a_ii, a_i., b_i.) = softmax of (d_self_i, s_ij + d_j, s_ij + g_i).
/// y [B, T, H, DV], every entry written; a token that reads nothing has y_i = v_i, one whose logits
/// are all -inf has 0. Time O(reads (DK + DV)) a head, memory O(T (DK + DV)) a thread; one row of
/// weights exists at a time.
template <typename T>
void glr_softmax(const GlrSoftmaxInputs<T>& in, T* y);

/// Gradients from grad_y [B, T, H, DV]; `y` is what glr_softmax() gave. Weights are computed again.
/// Same cost.
template <typename T>
void glr_softmax_backward(const GlrSoftmaxInputs<T>& in, const T* y, const T* grad_y,
                          const GlrSoftmaxGradients<T>& out);

}  // namespace hopmix::kernels

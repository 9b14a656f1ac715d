// Generalized linear recurrence whose coefficients are a gated softmax over the pattern (arXiv
// 2605.31367, the weight sharing A = B D + D' of appendix B.3).
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"
#include "hopmix/kernels/rows/rows.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. Query head h reads key/value head h / (H /
/// G).
template <typename T>
struct GlrAttentionInputs {
  const T* q;           // [B, T, H, DK]
  const T* k;           // [B, T, G, DK]
  const T* v;           // [B, T, G, DV]
  const T* gate;        // [B, T, H]
  const T* d;           // [B, T, H]
  const T* d_self;      // [B, T, H]
  int64_t heads;        // H, a multiple of G
  int64_t kv_heads;     // G
  int64_t key_width;    // DK
  int64_t value_width;  // DV
  double scale;
  const Sequences& sequences;
  RowsOfHeads rows;
};

/// Where the gradients go, each of its input's shape; null skips one.
template <typename T>
struct GlrAttentionGradients {
  T* q = nullptr;
  T* k = nullptr;
  T* v = nullptr;
  T* gate = nullptr;
  T* d = nullptr;
  T* d_self = nullptr;
};

/// With P = softmax over row i of scale q_i . k_j:
///   z_i = (d_i + d_self_i) v_i + gate_i sum_j P_ij z_j,   y_i = z_i - d_i v_i.
/// j counts as often as row i lists it. y [B, T, H, DV], every entry written; a token that reads
/// nothing has y_i = d_self_i v_i. Time O(reads (DK + DV)) a head, memory O(T (DK + DV)) a thread;
/// one row of logits exists at a time.
template <typename T>
void glr_attention(const GlrAttentionInputs<T>& in, T* y);

/// Gradients from grad_y [B, T, H, DV]; `y` is what glr_attention() gave. Logits are computed
/// again. Same cost.
template <typename T>
void glr_attention_backward(const GlrAttentionInputs<T>& in, const T* y, const T* grad_y,
                            const GlrAttentionGradients<T>& out);

}  // namespace hopmix::kernels

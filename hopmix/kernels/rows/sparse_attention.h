// Softmax attention over a pattern: Sparse Transformer (arXiv 1904.10509), Longformer, BigBird and
// local attention are this with their patterns; `dense` with self is ordinary causal attention.
// Over what was retrieved for each token and head it is the sparse layer of MURA and HySparse.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"
#include "hopmix/kernels/rows/rows.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. Query head h reads key/value head h / (H /
/// G).
template <typename T>
struct SparseAttentionInputs {
  const T* q;           // [B, T, H, DK]
  const T* k;           // [B, T, G, DK]
  const T* v;           // [B, T, G, DV]
  int64_t heads;        // H, a multiple of G
  int64_t kv_heads;     // G
  int64_t key_width;    // DK
  int64_t value_width;  // DV
  double scale;
  bool include_self;  // token i also reads itself; what was retrieved may hold it
  const Sequences& sequences;
  RowsOfHeads rows;
};

/// Where the gradients go, each of its input's shape; null skips one.
template <typename T>
struct SparseAttentionGradients {
  T* q = nullptr;
  T* k = nullptr;
  T* v = nullptr;
};

/// y_i = sum_j P_ij v_j with P = softmax over row i of scale q_i . k_j; 0 for a token that reads
/// nothing, and j counts as often as it is listed. y [B, T, H, DV], every entry written. Time
/// O(reads (DK + DV)) a head, memory O(T (DK + DV)) a thread.
template <typename T>
void sparse_attention(const SparseAttentionInputs<T>& in, T* y);

/// Gradients from grad_y [B, T, H, DV]. Logits are computed again. Same cost.
template <typename T>
void sparse_attention_backward(const SparseAttentionInputs<T>& in, const T* grad_y,
                               const SparseAttentionGradients<T>& out);

}  // namespace hopmix::kernels

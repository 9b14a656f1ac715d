// Causal softmax attention, o_i = sum over j <= i of P_ij v_j, P = softmax of scale q_i . k_j, in
// blocks (attention_blocks.h). It can also select the best keys of each row while their scores are
// in cache.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. Query head h reads key/value head h / (H /
/// G).
template <typename T>
struct AttentionInputs {
  const T* q;           // [B, T, H, DK]
  const T* k;           // [B, T, G, DK]
  const T* v;           // [B, T, G, DV]
  int64_t heads;        // H, a multiple of G
  int64_t kv_heads;     // G
  int64_t key_width;    // DK
  int64_t value_width;  // DV
  double scale;
  const Sequences& sequences;
};

/// What the backward needs from the forward: mix [B, T, H, DV], which is o before rounding, and lse
/// [B, T, H], log2 of the sum of 2^(scale log2(e) q . k). In the forward, null skips one.
template <typename A>
struct AttentionKept {
  A* mix = nullptr;
  A* lse = nullptr;
};

/// The `kappa` best keys of each row, or blocks of `block` keys ranked by their best: those with
/// the largest scores, including the row's own if `self`; among equals the earlier.
struct AttentionSelection {
  int64_t kappa = 0;  // 0: none
  int64_t block = 1;
  bool self = true;
  int32_t* indices = nullptr;  // [B, T, H, kappa], best first, -1 where there are fewer
};

/// Output gradients, each with the shape of its input; null skips one.
template <typename T>
struct AttentionGradients {
  T* q = nullptr;
  T* k = nullptr;
  T* v = nullptr;
};

/// o [B, T, H, DV]; writes every entry. Time O(T^2 (DK + DV)) per head, memory O(T (DK + DV)) per
/// thread. A row's bits depend only on what it reads.
template <typename T>
void attention(const AttentionInputs<T>& in, T* o, const AttentionKept<Accumulator<T>>& kept,
               const AttentionSelection& selection = {});

/// Gradients from grad_o [B, T, H, DV]. Recomputes the scores. Same cost.
template <typename T>
void attention_backward(const AttentionInputs<T>& in, const T* grad_o,
                        const AttentionKept<const Accumulator<T>>& kept,
                        const AttentionGradients<T>& out);

}  // namespace hopmix::kernels

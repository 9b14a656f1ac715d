// Causal softmax attention, o_i = sum over j <= i of P_ij v_j, P = softmax of scale q_i . k_j, by
// blocks (attention_blocks.h), which can also pick for each row its best keys while their scores
// are at hand.
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

/// What the backward needs of the forward: mix [B, T, H, DV], which is o unrounded, and lse [B, T,
/// H], log2 of the sum of 2^(scale log2(e) q . k). Forward, null skips one.
template <typename A>
struct AttentionKept {
  A* mix = nullptr;
  A* lse = nullptr;
};

/// The `kappa` best keys of each row, or blocks of `block` keys by their best: those of the largest
/// scores, the row's own among them if `self`; of equal ones the earlier.
struct AttentionSelection {
  int64_t kappa = 0;  // 0: none
  int64_t block = 1;
  bool self = true;
  int32_t* indices = nullptr;  // [B, T, H, kappa], best first, -1 where there are fewer
};

/// Where the gradients go, each of its input's shape; null skips one.
template <typename T>
struct AttentionGradients {
  T* q = nullptr;
  T* k = nullptr;
  T* v = nullptr;
};

/// o [B, T, H, DV], every entry written. Time O(T^2 (DK + DV)) a head, memory O(T (DK + DV)) a
/// thread. A row's bits depend on nothing but what it reads.
template <typename T>
void attention(const AttentionInputs<T>& in, T* o, const AttentionKept<Accumulator<T>>& kept,
               const AttentionSelection& selection = {});

/// Gradients from grad_o [B, T, H, DV]. Scores are computed again. Same cost.
template <typename T>
void attention_backward(const AttentionInputs<T>& in, const T* grad_o,
                        const AttentionKept<const Accumulator<T>>& kept,
                        const AttentionGradients<T>& out);

}  // namespace hopmix::kernels

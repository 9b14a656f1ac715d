// Block-ChaCAL: ChaCAL inside blocks of b tokens, with one summary per block across them.
//
// Block C has the summary key kbar_C = mean of its k and the summary value wbar_C = mean of its W.
// With a_BC = softmax over C < B of scale q_first(B) . kbar_C, block B reads s_B = sum_C a_BC
// kbar_C and r_B = sum_C a_BC wbar_C as one more key and value:
//
//   W_i = v_i + gamma mix_i,  mix_i = sum_j A_ij W_j + A_is r_B,  y_i = (1 - gamma) mix_i
//
// with A_i the softmax over scale q_i . k_j of the block's j <= i and scale q_i . s_B. README.md
// derives the solution and the gradient.
#pragma once

#include "hopmix/kernels/dense/chacal.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. Query head h reads key/value head h / (H /
/// G).
template <typename T>
struct BlockChacalInputs {
  const T* q;           // [B, T, H, DK]
  const T* k;           // [B, T, G, DK]
  const T* v;           // [B, T, G, DV]
  int64_t heads;        // H, a multiple of G
  int64_t kv_heads;     // G
  int64_t key_width;    // DK
  int64_t value_width;  // DV
  double gamma;         // at least 0, below 1
  int64_t block;        // 0: the least b with b^3 >= the sequence's length
  double scale;
  const Sequences& sequences;
};

/// y [B, T, H, DV]; writes every entry of y and of `kept`. All products are in the type of sums.
/// Time O(T b D + (T / b)^2 D) per head, memory O(T D + b^2) per thread.
template <typename T>
void block_chacal(const BlockChacalInputs<T>& in, T* y, const DenseKept<Accumulator<T>>& kept);

/// Gradients from grad_y [B, T, H, DV]. Same cost.
template <typename T>
void block_chacal_backward(const BlockChacalInputs<T>& in, const T* grad_y,
                           const DenseKept<const Accumulator<T>>& kept,
                           const ChacalGradients<T>& out);

}  // namespace hopmix::kernels

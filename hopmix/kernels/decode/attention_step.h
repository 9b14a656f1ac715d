// Softmax attention of one token to a decoder's cached past: the newest row of sparse_attention,
// and the read of the newest row of glr_attention.
//
//   y_h = sum_r p_hr v_r,   p_h = softmax over r of scale q_h . k_r
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// T is float, double or Bfloat16; head h of the H reads key/value head h G / H of the G.
template <typename T>
struct AttentionStepInputs {
  const T* q;                                  // [B, H, DK]
  const T *k, *v;                              // [B, slots, G, DK], [B, slots, G, DV]
  const int32_t* slots;                        // [reads], those that are read; null: the first
  const T *own_k = nullptr, *own_v = nullptr;  // [B, G, ...], one more to read; null: none
  int64_t batch, reads, heads, kv_heads;       // H, G
  int64_t key_width, value_width;              // DK, DV
  int64_t k_stride, v_stride;                  // from one sequence of k, v to the next
  double scale;
};

/// y [B, H, DV]; 0 if nothing is read.
template <typename T>
void attention_step(const AttentionStepInputs<T>& in, T* y);

}  // namespace hopmix::kernels

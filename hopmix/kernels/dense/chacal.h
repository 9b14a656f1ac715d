// ChaCAL (Fagnou et al. 2024, arXiv 2410.05565): Y = (1 - gamma) A (I - gamma A)^{-1} V with A
// causal softmax attention, self included; computed in blocks (dense_blocks.h) with c = v, g =
// gamma and rows that read themselves: W = (I - gamma A)^{-1} V, y = (1 - gamma) mix.
#pragma once

#include "hopmix/kernels/dense/dense_recurrence.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. Query head h reads key/value head h / (H /
/// G).
template <typename T>
struct ChacalInputs {
  const T* q;           // [B, T, H, DK]
  const T* k;           // [B, T, G, DK]
  const T* v;           // [B, T, G, DV]
  int64_t heads;        // H, a multiple of G
  int64_t kv_heads;     // G
  int64_t key_width;    // DK
  int64_t value_width;  // DV
  double gamma;         // at least 0, below 1
  double scale;
  const Sequences& sequences;
};

/// Output gradients, each with the shape of its input; null skips one.
template <typename T>
struct ChacalGradients {
  T* q = nullptr;
  T* k = nullptr;
  T* v = nullptr;
};

/// y [B, T, H, DV]; writes every entry of y and of `kept`. Time O(T^2 (DK + DV)) per head, memory
/// O(T (DK + DV)) per thread.
template <typename T>
void chacal(const ChacalInputs<T>& in, T* y, const DenseKept<Accumulator<T>>& kept);

/// Gradients from grad_y [B, T, H, DV]. Same cost.
template <typename T>
void chacal_backward(const ChacalInputs<T>& in, const T* grad_y,
                     const DenseKept<const Accumulator<T>>& kept, const ChacalGradients<T>& out);

}  // namespace hopmix::kernels

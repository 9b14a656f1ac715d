// A recurrence over dense causal softmax weights (shared coefficients): with P = softmax over j < i
// of scale q_i . k_j,
//
//   z_i = (d_i + d_self_i) v_i + gate_i sum_j P_ij z_j,   y_i = z_i - d_i v_i,
//
// by blocks (dense_blocks.h) with c = (d + d_self) v, g = gate, w = z: y = d_self v + gate mix.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. Query head h reads key/value head h / (H /
/// G).
template <typename T>
struct DenseRecurrenceInputs {
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
};

/// What the backward needs from the forward: mix [B, T, H, DV], not rounded because the backward
/// takes small differences of its products, and lse [B, T, H], log2 of the sum of 2^(scale log2(e)
/// q . k), infinity if nothing is read.
template <typename A>
struct DenseKept {
  A* mix;
  A* lse;
};

/// Output gradients, each with the shape of its input; null skips one.
template <typename T>
struct DenseRecurrenceGradients {
  T* q = nullptr;
  T* k = nullptr;
  T* v = nullptr;
  T* gate = nullptr;
  T* d = nullptr;
  T* d_self = nullptr;
};

/// y [B, T, H, DV]; writes every entry of y and of `kept`. Time O(T^2 (DK + DV)) per head, memory
/// O(T (DK + DV)) per thread.
template <typename T>
void dense_recurrence(const DenseRecurrenceInputs<T>& in, T* y,
                      const DenseKept<Accumulator<T>>& kept);

/// Gradients from grad_y [B, T, H, DV]. Same cost.
template <typename T>
void dense_recurrence_backward(const DenseRecurrenceInputs<T>& in, const T* grad_y,
                               const DenseKept<const Accumulator<T>>& kept,
                               const DenseRecurrenceGradients<T>& out);

}  // namespace hopmix::kernels

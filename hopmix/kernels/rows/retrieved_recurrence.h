// A recurrence on what was retrieved for each token, by hops: GLR (arXiv 2605.31367) whose B is
// gate P times the nilpotent shift of hops + 1 blocks, so that no row waits for another.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"
#include "hopmix/kernels/rows/rows.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16. Query head h reads key/value head h / (H /
/// G).
template <typename T>
struct RetrievedRecurrenceInputs {
  const T* q;           // [B, T, H, DK]
  const T* k;           // [B, T, G, DK]
  const T* v;           // [B, T, G, DV]
  const T* gate;        // [B, T, H]
  int64_t heads;        // H, a multiple of G
  int64_t kv_heads;     // G
  int64_t key_width;    // DK
  int64_t value_width;  // DV
  int64_t hops;         // at least 1
  double scale;
  const Sequences& sequences;
  RowsOfHeads rows;  // of tokens j < i
};

/// Where the gradients go, each of its input's shape; null skips one.
template <typename T>
struct RetrievedRecurrenceGradients {
  T* q = nullptr;
  T* k = nullptr;
  T* v = nullptr;
  T* gate = nullptr;
};

/// With P = softmax over row i of scale q_i . k_j:
///   z_i^(0) = v_i,   z_i^(r) = gate_i sum_j P_ij z_j^(r-1),   r = 1 .. hops;
/// a row without reads has z_i^(r) = 0 for r >= 1. z [B, T, H, hops + 1, DV], every entry written.
/// Time O(reads (DK + hops DV)) a head, memory O(reads + T (DK + DV)) a thread.
template <typename T>
void retrieved_recurrence(const RetrievedRecurrenceInputs<T>& in, T* z);

/// Gradients from grad_z [B, T, H, hops + 1, DV]. P and z are computed again, once. Memory O(reads
/// + T (DK + hops DV)) a thread.
template <typename T>
void retrieved_recurrence_backward(const RetrievedRecurrenceInputs<T>& in, const T* grad_z,
                                   const RetrievedRecurrenceGradients<T>& out);

}  // namespace hopmix::kernels

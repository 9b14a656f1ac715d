// The last linear map of a language model and its cross entropy in one: logits = x weight^T + bias
// are computed in blocks, and the matrix [rows, vocabulary] is never stored.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16.
template <typename T>
struct HeadLossInputs {
  using A = Accumulator<T>;
  const T* x;              // [rows, width]
  const T* weight;         // [vocabulary, width]
  const T* bias;           // [vocabulary], or null
  const int64_t* targets;  // [rows], each in [0, vocabulary)
  const A* row_weights;    // [rows], or null: 1 / rows, which makes the sum a mean
  int64_t rows, width, vocabulary;
};

/// Gradients of the sum of all losses, each of its input's shape; null skips one.
template <typename T>
struct HeadLossGradients {
  T* x = nullptr;
  T* weight = nullptr;
  T* bias = nullptr;
};

/// For each row, the cross entropy log(sum_v e^logit_v) - logit_target and the index of its largest
/// logit, the first among equals; returns the sum of row_weight times loss. The gradients are
/// computed in the same call, while the logits they need are available: 3 products, or 1 without
/// them.
///
/// Memory: O(vocabulary) for 64 rows, and up to 32 MiB of logits for the gradients.
template <typename T>
Accumulator<T> head_loss(const HeadLossInputs<T>& in, Accumulator<T>* losses, int64_t* guesses,
                         const HeadLossGradients<T>& out);

}  // namespace hopmix::kernels

// The feed-forward part of a block: y = gelu(x U^T + a) D^T + b, a block of rows at a time, so that
// what the activation takes and gives stays in the L2 cache between the two products. What it gives
// is rounded to T. Only the hidden numbers before the activation are kept for the backward, which
// computes the rest again.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// x [rows, width], U [hidden, width], a [hidden], D [outputs, hidden], b [outputs].
template <typename T>
struct MlpInputs {
  const T *x, *up, *up_bias, *down, *down_bias;
  int64_t rows, width, hidden, outputs;
};

/// The gradients of the inputs; null: not wanted.
template <typename T>
struct MlpGradients {
  T *x, *up, *up_bias, *down, *down_bias;
};

/// y [rows, outputs]; h [rows, hidden] = x U^T + a, or null: not wanted.
template <typename T>
void mlp_forward(const MlpInputs<T>& in, T* h, T* y);

template <typename T>
void mlp_backward(const MlpInputs<T>& in, const T* h, const T* dy, const MlpGradients<T>& out);

}  // namespace hopmix::kernels

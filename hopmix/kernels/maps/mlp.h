// The feed-forward part of a block: y = gelu(x U^T + a) D^T + b, one block of rows at a time, so
// that the activation's input and output stay in the L2 cache between the two products. The output
// is rounded to T. Only the hidden numbers before the activation are stored for the backward, which
// recomputes the rest.
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

/// The gradients of the inputs; null if not wanted.
template <typename T>
struct MlpGradients {
  T *x, *up, *up_bias, *down, *down_bias;
};

/// y [rows, outputs]; h [rows, hidden] = x U^T + a, or null if not wanted.
template <typename T>
void mlp_forward(const MlpInputs<T>& in, T* h, T* y);

template <typename T>
void mlp_backward(const MlpInputs<T>& in, const T* h, const T* dy, const MlpGradients<T>& out);

}  // namespace hopmix::kernels

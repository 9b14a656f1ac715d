// Root-mean-square normalization (arXiv 1910.07467, equation 4).
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// Contiguous inputs; T is float, double or Bfloat16.
template <typename T>
struct RmsNormInputs {
  const T* x;       // [rows, width]
  const T* weight;  // [width]
  int64_t rows, width;
  double eps;
};

/// Output gradients, each with the shape of its input; null skips one.
template <typename T>
struct RmsNormGradients {
  T* x = nullptr;
  T* weight = nullptr;
};

/// y = x / sqrt(mean of x^2 over the row + eps) * weight. y [rows, width].
template <typename T>
void rms_norm(const RmsNormInputs<T>& in, T* y);

/// Gradients from grad_y [rows, width]. Recomputes the row statistics from x, which has to be read
/// anyway.
template <typename T>
void rms_norm_backward(const RmsNormInputs<T>& in, const T* grad_y, const RmsNormGradients<T>& out);

}  // namespace hopmix::kernels

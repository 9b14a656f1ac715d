// Causal depthwise convolution over a few tokens, as used in recurrent layers before their
// recurrence (arXiv 2312.00752, 2402.19427).
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

/// The most taps: their sums stay in registers or in the L1 cache.
inline constexpr int64_t kMostTaps = 32;

/// Contiguous inputs; T is float, double or Bfloat16.
template <typename T>
struct ShortConvolutionInputs {
  const T* x;           // [B, T, E]
  const T* weight;      // [E, W]; the last column weighs the token itself
  const T* bias;        // [E], or null for zero
  int64_t width, taps;  // E, W; 1 <= W <= kMostTaps
  bool silu;
  const Sequences& sequences;
};

/// Output gradients, each with the shape of its input; null skips one.
template <typename T>
struct ShortConvolutionGradients {
  T* x = nullptr;
  T* weight = nullptr;
  T* bias = nullptr;
};

/// y_t = f(bias + sum over j < W of weight[:, W-1-j] x_{t-j}), tokens before the sequence being 0;
/// f is SiLU, s / (1 + e^-s), or nothing. y [B, T, E].
template <typename T>
void short_convolution(const ShortConvolutionInputs<T>& in, T* y);

/// Gradients from grad_y [B, T, E]. Recomputes the input of SiLU.
template <typename T>
void short_convolution_backward(const ShortConvolutionInputs<T>& in, const T* grad_y,
                                const ShortConvolutionGradients<T>& out);

}  // namespace hopmix::kernels

// GELU, x Phi(x) with Phi the normal distribution (Hendrycks and Gimpel 2016, arXiv 1606.08415), in
// the exact form rather than the tanh approximation, and its derivative Phi(x) + x phi(x); compiled
// for every instruction set.
#pragma once

#include <cstdint>

namespace hopmix::kernels {

/// A is float or double.
template <typename A>
struct GeluLoops {
  /// y = gelu(x); y may be x.
  void (*forward)(int64_t n, const A* x, A* y);
  /// y = gelu(x) and dx = dy gelu'(x); dx may be dy.
  void (*backward)(int64_t n, const A* x, const A* dy, A* y, A* dx);
};

template <typename A>
GeluLoops<A> gelu_loops();

}  // namespace hopmix::kernels

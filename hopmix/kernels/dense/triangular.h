// Blocks on the diagonal: their triangular system, solved by tiles.substitute in strips of
// kTileLanes rows, and products of a strip with all rows before it (or, in the backward, after it).
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopmix/kernels/dense/softmax_tile.h"
#include "hopmix/kernels/gemm.h"

namespace hopmix::kernels {

/// Rows per strip of a block on the diagonal, of which only the visible part is multiplied.
/// bfloat16 products are so fast that starting one costs more than it saves.
template <typename O>
inline constexpr int64_t kStrip = std::is_same_v<O, Bfloat16> ? 64 : kTileLanes;

/// Calls f(first, rows) for the strips of n rows.
template <typename O, typename F>
void for_strips(int64_t n, const F& f) {
  for (int64_t s = 0; s < n; s += kStrip<O>) f(s, std::min(kStrip<O>, n - s));
}

/// mix_i = (mix_i + sum_j p_ij w_j) / sum_i, w_i += gate_i mix_i, over j < i, or j <= i with
/// `self`; w initially holds c. p [n, ldp]; mix and w [n, width]. No row reads a later one.
template <typename A>
void solve_lower(int64_t n, int64_t width, bool self, const A* p, int64_t ldp, const A* sum,
                 const A* gate, A* mix, A* w) {
  for (int64_t s = 0; s < n; s += kTileLanes) {
    const A* row = p + s * ldp;
    multiply<A>(kTileLanes, width, s, row, ldp, w, width, mix + s * width, width, /*add=*/true);
    tiles<A, A>().substitute(kTileLanes, width, self, row + s, ldp, sum + s, gate + s,
                             mix + s * width, w + s * width);
  }
}

/// l_j += sum_i p_ij h_i, h_j += gate_j l_j, over i > j, or i >= j with `self`. p is normalized and
/// transposed: p_ij at [j, i].
template <typename A>
void solve_lower_backward(int64_t n, int64_t width, bool self, const A* p, int64_t ldp,
                          const A* gate, A* l, A* h) {
  for (int64_t s = n - kTileLanes; s >= 0; s -= kTileLanes) {
    const A* row = p + s * ldp;
    const int64_t next = s + kTileLanes;
    multiply<A>(kTileLanes, width, n - next, row + next, ldp, h + next * width, width,
                l + s * width, width, /*add=*/true);
    tiles<A, A>().substitute_backward(kTileLanes, width, self, row + s, ldp, gate + s,
                                      l + s * width, h + s * width);
  }
}

}  // namespace hopmix::kernels

// The parts of a chunk of the (gated) delta rule that are not matrix products; delta_chunk.h has
// the equations.
//
// Rows are the n tokens of a chunk. n and widths are multiples of kTileLanes. Log decays G are the
// sum of `high` and `low`, so that a small decay after a large one keeps its digits; null without
// decay.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// Raw products k . k and q . k of one chunk [n, n], of which only visible entries are read, and G
/// [n].
template <typename A>
struct DeltaScores {
  int64_t n;
  const A *kk, *qk;
  const A *high, *low;
};

/// The kernels, as compiled for the best instructions of this CPU. A is what sums are made in, O
/// what products take: (float, float), (float, Bfloat16) or (double, double).
template <typename A, typename O>
struct DeltaTable {
  /// m_ij = e^(G_i - G_j) kk_ij where j < i, p_ij = e^(G_i - G_j) qk_ij where j <= i; 0 elsewhere.
  /// They may be the scores. p may be null if not wanted.
  void (*weights)(const DeltaScores<A>&, A* m, O* p);

  /// The same with rows j and columns i, from transposed scores; and only the decays.
  void (*weights_transposed)(const DeltaScores<A>&, A* decay, A* m, O* p);

  /// From the transposed gradients of m and p: the gradients of kk and qk, 0 where hidden, possibly
  /// in place, and, unless dg is null, dg_t = sum over j < t <= i of the gradient of G_i - G_j.
  /// `scratch` is [n].
  void (*weights_backward)(const DeltaScores<A>&, const A* decay, const A* m, const A* dm,
                           const A* dp, A* dkk, A* dqk, A* scratch, A* dg);

  /// w = v - x, u_i = beta_i w_i. w may be v.
  void (*errors)(int64_t n, int64_t width, const A* beta, const A* v, const A* x, A* w, A* u);

  /// y += x
  void (*add)(int64_t size, const A* x, A* y);
};

template <typename A, typename O>
DeltaTable<A, O> delta_tiles();

}  // namespace hopmix::kernels

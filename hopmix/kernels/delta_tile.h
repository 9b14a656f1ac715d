// The parts of a chunk of the (gated) delta rule that are not matrix products; ops/delta_rule.h
// joins them with the products and has the equations.
//
// Rows are tokens of a chunk, n of them. n and widths are multiples of kPad, tiles are row-major
// and contiguous unless a leading dimension is given. Log decays G come as the sum of `high` and
// `low`, so that a small decay behind a large one keeps its digits; null where there are none.
#pragma once

#include <cstdint>

#include "hopmix/kernels/bfloat16.h"

namespace hopmix::kernels {

/// Raw products k . k and q . k of one chunk with leading dimension ld, and G [n].
template <typename A>
struct DeltaScores {
  int64_t n, ld;
  const A *kk, *qk;
  const A *high, *low;
};

/// The kernels, as compiled for the best instructions of this CPU. A is what sums are made in, O
/// what products take: (float, float), (float, Bfloat16) or (double, double).
template <typename A, typename O>
struct DeltaTable {
  /// m_ij = e^(G_i - G_j) kk_ij where j < i, p_ij = e^(G_i - G_j) qk_ij where j <= i; 0 elsewhere.
  /// Both have the scores' ld and may be the scores. p may be null: not wanted.
  void (*weights)(const DeltaScores<A>&, A* m, O* p);

  /// The same transposed, rows j and columns i, as [n, n]; and the decays alone.
  void (*weights_transposed)(const DeltaScores<A>&, A* decay, A* m, O* p);

  /// From the gradients of m and p (transposed, with the scores' ld): those of kk and qk [n, n], 0
  /// where hidden, and dg_t += sum over j < t <= i of what e^(G_i - G_j) gets, unless dg is null.
  void (*weights_backward)(const DeltaScores<A>&, const A* decay, const A* m, const A* dm,
                           const A* dp, A* dkk, A* dqk, A* dg);

  /// w_i = v_i - a_i x_i, u_i = beta_i w_i. Factors of rows may be null, here and below: ones.
  void (*errors)(int64_t n, int64_t width, const A* a, const A* beta, const A* v, const A* x, A* w,
                 A* u);

  /// out_i = s_i x_i, in place or not.
  void (*scale)(int64_t n, int64_t width, const A* s, const A* x, A* out);

  /// out_i = s_i x_i as a left factor, or as a right one.
  void (*left)(int64_t n, int64_t width, const A* s, const A* x, O* out);
  void (*right)(int64_t n, int64_t width, const A* s, const A* x, O* out);

  /// out = x + y
  void (*sum)(int64_t n, int64_t width, const A* x, const A* y, O* out);

  /// out_i += x_i . y_i
  void (*dots)(int64_t n, int64_t width, const A* x, const A* y, A* out);
};

template <typename A, typename O>
const DeltaTable<A, O>& delta_tiles();

/// [rows, 2 cols] = [rows / 2, cols] pairs: a right factor of bfloat16 as a left one.
void split_pairs(int64_t rows, int64_t cols, const Bfloat16* pairs, Bfloat16* out);

}  // namespace hopmix::kernels

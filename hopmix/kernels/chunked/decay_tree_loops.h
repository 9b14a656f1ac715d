// The elementwise work of decay_tree.h, compiled for every instruction set and selected at run
// time. Rows are `width` long, a multiple of kTileLanes. Blocks of h tokens are consecutive, and
// the last one may be shorter; two neighbours L and R form a block of the next level, and a last
// block without a neighbour forms one by itself. Tensors of blocks have one row each.
#pragma once

#include <cstdint>

namespace hopmix::kernels {

template <typename A>
struct DecayTreeLoops {
  /// y = e^x.
  void (*powers)(const A* x, int64_t size, A* y);

  /// From level h to 2h: multiplies rows of R by d of L and copies the others; the reverse for
  /// keys. In place if q2 is q and k2 is k.
  void (*join_readers)(int64_t n, int64_t width, int64_t h, const A* q, const A* d, A* q2);
  void (*join_keys)(int64_t n, int64_t width, int64_t h, const A* k, const A* d, A* k2);
  /// The same for the sums of blocks, in place.
  void (*join_sums)(int64_t n, int64_t width, int64_t h, A* sums);

  /// The gradient of join_sums(): e of both blocks = e2.
  void (*spread)(int64_t n, int64_t width, int64_t h, const A* e2, A* e);
  /// The gradients of the others: d_q and d_k change from those of q2 and k2 to those of q and k.
  /// Adds to e of L the sum over R of q2 o d_q, and to e of R the sum over L of k2 o d_k.
  void (*part_readers)(int64_t n, int64_t width, int64_t h, const A* q2, const A* d, A* d_q, A* e);
  void (*part_keys)(int64_t n, int64_t width, int64_t h, const A* k2, const A* d, A* d_k, A* e);

  /// For single tokens, q1 = d q: e += q1 o d_q, then d_q = d d_q.
  void (*leaves)(int64_t n, int64_t width, const A* q1, const A* d, A* d_q, A* e);
  /// y_i += factor_i x_i
  void (*add_rows)(int64_t n, int64_t width, const A* factor, const A* x, A* y);

  /// decayed = k e^(sum of g after its row), all [width] = e^(sum of g).
  void (*behind)(int64_t n, int64_t width, const A* g, const A* k, A* decayed, A* all);
};

template <typename A>
DecayTreeLoops<A> decay_tree_loops();

}  // namespace hopmix::kernels

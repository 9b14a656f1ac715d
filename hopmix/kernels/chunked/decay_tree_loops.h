// The elementwise work of ops/channel_decay.h, compiled for every instruction set and chosen at run
// time. Rows are `width` long, a multiple of kTileLanes. Blocks of h tokens follow one another, the
// last one may be shorter; two neighbours L and R make one of the next level, a last one without
// neighbour is one by itself. Tensors of blocks have a row for each.
#pragma once

#include <cstdint>

namespace hopmix::kernels {

template <typename A>
struct DecayTreeLoops {
  /// y = e^x.
  void (*powers)(const A* x, int64_t size, A* y);

  /// From level h to 2h: q of R times d of L, k of L times d of R, the others copied; sums of
  /// blocks. In place if q2 is q, k2 is k, sums2 is sums.
  void (*join)(int64_t n, int64_t width, int64_t h, const A* q, const A* k, const A* d,
               const A* sums, A* q2, A* k2, A* sums2);

  /// Its gradient. d_q and d_k are those of q2 and k2 and become those of q and k; from e2, that of
  /// the sums2 as far as known, follows e of the sums: e of L = e2 + sum over R of q2 o d_q, e of
  /// R = e2 + sum over L of k2 o d_k.
  void (*part)(int64_t n, int64_t width, int64_t h, const A* q2, const A* k2, const A* d,
               const A* e2, A* d_q, A* d_k, A* e);

  /// For tokens alone, q1 = d q: e += q1 o d_q, then d_q = d d_q + own_i k and d_k += own_i q.
  void (*leaves)(int64_t n, int64_t width, const A* q, const A* k, const A* q1, const A* d,
                 const A* own, A* d_q, A* d_k, A* e);

  /// decayed = k e^(sum of g behind its row), all [width] = e^(sum of g).
  void (*behind)(int64_t n, int64_t width, const A* g, const A* k, A* decayed, A* all);
};

template <typename A>
DecayTreeLoops<A> decay_tree_loops();

}  // namespace hopmix::kernels

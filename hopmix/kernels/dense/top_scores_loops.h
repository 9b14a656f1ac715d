// The loops of TopScores, compiled for every instruction set.
#pragma once

#include "hopmix/kernels/dense/top_scores.h"

namespace hopmix::kernels {

template <typename A>
struct TopLoops {
  /// Like TopScores::offer.
  void (*offer)(const ScoreTile<A>& tile, int64_t diagonal, int64_t first, const TopShape& shape,
                Candidates<A>* rows);

  /// Keeps the row's kappa best and writes their columns (or blocks), best first.
  void (*rank)(const TopShape& shape, Candidates<A>& row, int32_t* out);
};

template <typename A>
TopLoops<A> top_loops();

}  // namespace hopmix::kernels

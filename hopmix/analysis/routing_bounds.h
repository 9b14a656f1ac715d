// Lower bounds on the congestion of the copy routing (congestion.h), fractional or not, that need
// no search. Proofs in docs/congestion.md.
#pragma once

#include <cstdint>
#include <functional>

#include "hopmix/analysis/routing.h"

namespace hopmix {

struct DistanceBound {
  int64_t unreachable = 0;  // pairs (c + n, c) that no path joins
  double bound = 0;         // infinite when there are any, 0 without inputs
};

/// (d + 1) / 2, d the mean over c of the hops from c + n to c (arXiv 2605.31367, proposition 4.7):
/// n paths of d + 1 tokens each on average, over 2n tokens. O(reads * n); `progress` before each
/// pair, and false stops: then it is of the pairs so far, and of no use.
DistanceBound distance_bound(const CopyProblem& problem,
                             const std::function<bool()>& progress = {});

/// The largest over cuts t, between tokens t and t + 1, of must(t) / carriers(t), the live cache.
/// carriers(t): the tokens j, t - n < j <= t, that some token i, t < i <= t + n, reads. must(t):
/// the pairs with c <= t < c + n, whose paths cross, and the pairs whose output c + n is itself a
/// carrier. A crossing path stays within (t - n, t + n], so the token where it lands below the cut
/// is a carrier: all must(t) paths, or their flow, pass through carriers, hence at least the
/// quotient through one of them. Infinite when a crossed cut has no carrier, 0 without inputs.
/// O(reads).
double cut_bound(const CopyProblem& problem);

}  // namespace hopmix

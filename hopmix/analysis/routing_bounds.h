// Lower bounds on the congestion of the copy routing (congestion.h), fractional or not, that need
// no search. Proofs are in docs/congestion.md.
#pragma once

#include <cstdint>
#include <functional>

#include "hopmix/analysis/routing.h"

namespace hopmix {

struct DistanceBound {
  int64_t unreachable = 0;  // pairs (c + n, c) with no path
  double bound = 0;         // infinite if there are any, 0 without inputs
};

/// (d + 1) / 2, where d is the mean over c of the hops from c + n to c (arXiv 2605.31367,
/// proposition 4.7): n paths of d + 1 tokens on average, over 2n tokens. O(reads * n). Calls
/// `progress` before each pair; returning false stops, and the result is then meaningless.
DistanceBound distance_bound(const CopyProblem& problem,
                             const std::function<bool()>& progress = {});

/// The maximum over cuts t, between tokens t and t + 1, of must(t) / carriers(t). carriers(t), the
/// live cache, is the number of tokens j, t - n < j <= t, that some token i, t < i <= t + n, reads.
/// must(t) is the number of pairs with c <= t < c + n, whose paths cross the cut, plus the pairs
/// whose output c + n is itself a carrier. A crossing path stays within (t - n, t + n], so the
/// token where it lands below the cut is a carrier. All must(t) paths, or their flow, therefore
/// pass through carriers, so at least the quotient passes through one of them. Infinite if a
/// crossed cut has no carrier, 0 without inputs. O(reads).
double cut_bound(const CopyProblem& problem);

}  // namespace hopmix

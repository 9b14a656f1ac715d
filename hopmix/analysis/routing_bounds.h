// Lower bounds on the congestion of the copy routing (congestion.h), fractional or not, that need
// no search. Proofs in docs/congestion.md.
#pragma once

#include <cstdint>

#include "hopmix/analysis/routing.h"

namespace hopmix {

/// Pairs (c + n, c) that no path joins. O(reads * n).
int64_t unreachable_pairs(const CopyProblem& problem);

/// (d + 1) / 2, d the mean over c of the hops from c + n to c (arXiv 2605.31367, proposition 4.7):
/// n paths of d + 1 tokens each on average, over 2n tokens. Infinite when a pair is unreachable, 0
/// without inputs. O(reads * n).
double distance_bound(const CopyProblem& problem);

/// The largest over cuts t, between tokens t and t + 1, of must(t) / carriers(t), the live cache.
/// carriers(t): the tokens j, t - n < j <= t, that some token i, t < i <= t + n, reads. must(t):
/// the pairs with c <= t < c + n, whose paths cross, and the pairs whose output c + n is itself a
/// carrier. A crossing path stays within (t - n, t + n], so the token where it lands below the cut
/// is a carrier: all must(t) paths, or their flow, pass through carriers, hence at least the
/// quotient through one of them. Infinite when a crossed cut has no carrier, 0 without inputs.
/// O(reads).
double cut_bound(const CopyProblem& problem);

}  // namespace hopmix

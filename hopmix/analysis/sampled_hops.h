// Hops where all pairs are too many: from some tokens back to all before them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// Searches from single tokens, again and again.
class HopSearch {
 public:
  explicit HopSearch(const Pattern& pattern);

  /// d(i, j) for j = 0 .. i (see hops.h), -1 where there is no path. Breadth-first search along
  /// reads: O(reads of the tokens below i) time; rows are made on the fly, so O(n) memory. Throws
  /// Error unless 0 <= i < size. What it returns lasts until the next call.
  const std::vector<int32_t>& from(int64_t i);

 private:
  Pattern pattern_;
  std::vector<int32_t> distance_, frontier_, next_, cols_;
};

/// Estimates over all pairs j < i.
struct SampledHops {
  int64_t sources = 0;            // searches made
  double mean = 0;                // of d over the pairs with a path
  double half_width = 0;          // of the 95% confidence interval, mean +- half_width
  int64_t diameter_at_least = 0;  // the largest d seen
  double unreachable = 0;         // estimated share of pairs with no path; then mean is of no use
};

/// `sources` tokens (at least 2) drawn with replacement, token i in proportion to i, the number of
/// its pairs: the average over draws of the mean d from one token is then an unbiased estimate of
/// the mean over pairs, and its spread gives the interval (Student's t). The same seed draws the
/// same tokens. `progress(done)` after each search; false stops. Throws Error for fewer than 2
/// tokens or sources.
SampledHops sampled_hops(const Pattern& pattern, int64_t sources, uint64_t seed,
                         const std::function<bool(int64_t)>& progress = {});

}  // namespace hopmix

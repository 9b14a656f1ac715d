// Hops from a sample of tokens, for lengths with too many pairs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// Searches from single tokens. Reusable.
class HopSearch {
 public:
  explicit HopSearch(const Pattern& pattern);

  /// d(i, j) for j = 0 .. i (see hops.h), -1 if there is no path. Breadth-first search along reads:
  /// O(reads of the tokens below i) time and, because rows are made on the fly, O(n) memory. The
  /// result is valid until the next call. Throws Error unless 0 <= i < size.
  const std::vector<int32_t>& from(int64_t i);

 private:
  Pattern pattern_;
  std::vector<int32_t> distance_, frontier_, next_, cols_;
};

/// Estimates over all pairs j < i.
struct SampledHops {
  int64_t sources = 0;            // number of searches
  double mean = 0;                // mean of d over the pairs with a path
  double half_width = 0;          // of the 95% confidence interval, mean +- half_width
  int64_t diameter_at_least = 0;  // the largest d seen
  double unreachable = 0;         // estimated share of pairs with no path; if above 0, ignore mean
};

/// Draws `sources` tokens (at least 2) with replacement, token i in proportion to i, the number of
/// its pairs. The average over draws of the mean d from one token is then an unbiased estimate of
/// the mean over pairs, and its spread gives the interval (Student's t). The same seed draws the
/// same tokens. Calls `progress(done)` after each search; returning false stops. Throws Error for
/// fewer than 2 tokens or sources.
SampledHops sampled_hops(const Pattern& pattern, int64_t sources, uint64_t seed,
                         const std::function<bool(int64_t)>& progress = {});

}  // namespace hopmix

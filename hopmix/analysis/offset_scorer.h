// Mean hops and cache of offset sets, fast enough to search millions. Private to this folder.
#pragma once

#include <cstdint>
#include <vector>

namespace hopmix {

/// Scores offset sets on n tokens.
class OffsetScorer {
 public:
  explicit OffsetScorer(int64_t n);

  /// The mean of d over all pairs j < i (see hops.h); infinite when some pair has no path. With bit
  /// sets: O(offsets * n / 64) for each hop of the diameter. `offsets` ascend from at least 1.
  double mean_hops(const std::vector<int64_t>& offsets);

  /// Tokens that a later token still reads, at most (see cost.h). O(n + offsets).
  int64_t cache_peak(const std::vector<int64_t>& offsets) const;

 private:
  int64_t n_, words_;
  std::vector<uint64_t> unseen_, fresh_, next_;  // bit s is about distance s
};

}  // namespace hopmix

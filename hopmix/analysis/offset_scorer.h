// Mean hops and cache of offset sets, fast enough to score millions. Private to this folder.
#pragma once

#include <cstdint>
#include <vector>

namespace hopmix {

/// Scores offset sets on n tokens.
class OffsetScorer {
 public:
  explicit OffsetScorer(int64_t n);

  /// The mean of d over all pairs j < i (see hops.h); infinite if some pair has no path. Uses bit
  /// sets: O(offsets * n / 64) per hop of the diameter. `offsets` ascend from at least 1.
  double mean_hops(const std::vector<int64_t>& offsets);

  /// The peak number of tokens that a later token still reads (see cost.h). O(n + offsets).
  int64_t cache_peak(const std::vector<int64_t>& offsets) const;

 private:
  int64_t n_, words_;
  std::vector<uint64_t> unseen_, fresh_, next_;  // bit s stands for distance s
};

}  // namespace hopmix

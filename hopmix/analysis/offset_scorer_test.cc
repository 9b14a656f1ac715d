#include "hopmix/analysis/offset_scorer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "hopmix/analysis/cost.h"
#include "hopmix/analysis/hops.h"
#include "hopmix/analysis/random.h"

namespace hopmix {
namespace {

TEST(OffsetScorer, EqualsHopsAndCostOnRandomSets) {
  std::mt19937_64 random(2);
  for (const int64_t n : {1, 2, 3, 63, 64, 65, 100, 128, 129, 300, 1000}) {
    OffsetScorer scorer(n);
    for (int trial = 0; trial < 60; ++trial) {
      std::set<int64_t> set;
      if (trial % 4 != 0) set.insert(1);
      const int64_t count = 1 + below(random, 12);
      while (static_cast<int64_t>(set.size()) < count) {
        set.insert(1 + below(random, std::max<int64_t>(n, 20) + 20));  // some are n or more
      }
      const std::vector<int64_t> offsets(set.begin(), set.end());
      std::string spec = "offsets(";
      for (const int64_t f : offsets) spec += std::to_string(f) + ",";
      spec.back() = ')';
      const Pattern pattern(spec, n);
      const Hops exact = hops(pattern);
      const double mean = scorer.mean_hops(offsets);
      EXPECT_EQ(std::isfinite(mean), exact.mean.has_value()) << spec << " " << n;
      if (exact.mean) {
        EXPECT_EQ(mean, *exact.mean) << spec << " " << n;
      }
      EXPECT_EQ(scorer.cache_peak(offsets), cost(pattern).cache_peak) << spec << " " << n;
    }
  }
}

}  // namespace
}  // namespace hopmix

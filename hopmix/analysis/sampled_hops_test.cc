#include "hopmix/analysis/sampled_hops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hopmix/analysis/hops.h"
#include "hopmix/base/error.h"

namespace hopmix {
namespace {

TEST(HopSearch, EqualsTheCoinProblemFromEveryToken) {
  for (const char* spec : {"2^k", "k^2+1", "offsets(2)", "offsets(6,9,20)", "fib", "offsets(1)"}) {
    for (const int64_t n : {1, 2, 63, 64, 65, 100, 300}) {
      const Pattern pattern(spec, n);
      const std::vector<int32_t> by_distance = hops_by_distance(pattern.offsets(), n);
      HopSearch search(pattern);
      for (int64_t i = n - 1; i >= 0; --i) {
        const std::vector<int32_t>& distance = search.from(i);
        ASSERT_EQ(static_cast<int64_t>(distance.size()), i + 1);
        for (int64_t j = 0; j <= i; ++j) {
          ASSERT_EQ(distance[j], by_distance[i - j]) << spec << " " << i << " " << j;
        }
      }
    }
  }
}

TEST(HopSearch, AddsUpToTheHopsOfAllPairs) {
  for (const char* spec : {"cached(2^k)", "fenwick", "global(2)", "random(2,1)", "blocks(7)"}) {
    for (const int64_t n : {2, 65, 200}) {
      const Pattern pattern(spec, n);
      HopSearch search(pattern);
      std::vector<int64_t> pairs(n);
      int64_t unreachable = 0;
      for (int64_t i = 0; i < n; ++i) {
        const std::vector<int32_t>& distance = search.from(i);
        for (int64_t j = 0; j < i; ++j) ++(distance[j] < 0 ? unreachable : pairs[distance[j]]);
      }
      const Hops all = hops(pattern);
      pairs.resize(all.pairs.size());
      EXPECT_EQ(pairs, all.pairs) << spec << n;
      EXPECT_EQ(unreachable, all.unreachable) << spec << n;
    }
  }
}

// A 95% interval misses one time in twenty: over 400 seeds, 380 hits are expected with a deviation
// of 4.4, and 358 .. 398 are all but certain.
TEST(SampledHops, TheIntervalHoldsTheMeanAsOftenAsItSays) {
  for (const char* spec : {"cached(2^k)", "fenwick|window(2)", "window(1)"}) {
    const Pattern pattern(spec, 257);
    const Hops exact = hops(pattern);
    int hits = 0;
    for (uint64_t seed = 0; seed < 400; ++seed) {
      const SampledHops sampled = sampled_hops(pattern, 40, seed);
      ASSERT_EQ(sampled.sources, 40);
      ASSERT_EQ(sampled.unreachable, 0);
      ASSERT_LE(sampled.diameter_at_least, *exact.diameter);
      ASSERT_GT(sampled.diameter_at_least, *exact.diameter / 2);
      hits += std::abs(sampled.mean - *exact.mean) <= sampled.half_width;
    }
    EXPECT_GE(hits, 358) << spec;
    EXPECT_LE(hits, 398) << spec;
  }
}

TEST(SampledHops, TwoSourcesGiveTheWideIntervalOfOneDegreeOfFreedom) {
  // window(1): the mean d from token i is (i + 1) / 2. t is 12.706 for 1 degree; with two values
  // the standard error is half their difference.
  const Pattern pattern("window(1)", 100);
  const SampledHops two = sampled_hops(pattern, 2, 5);
  const double difference = two.half_width / 12.706 * 2;
  const double a = two.mean + difference / 2, b = two.mean - difference / 2;
  // Both come out as (i + 1) / 2 for whole i, the larger one's i is the largest d.
  EXPECT_NEAR(2 * a - 1, static_cast<double>(two.diameter_at_least), 1e-6);
  EXPECT_NEAR(2 * b, std::round(2 * b), 1e-6);
}

TEST(SampledHops, RepeatsBySeedAndStopsWhenAsked) {
  const Pattern pattern("cached(k^2+1)", 1000);
  const SampledHops a = sampled_hops(pattern, 30, 1), b = sampled_hops(pattern, 30, 1);
  EXPECT_EQ(a.mean, b.mean);
  EXPECT_EQ(a.half_width, b.half_width);
  EXPECT_NE(a.mean, sampled_hops(pattern, 30, 2).mean);
  const SampledHops stopped = sampled_hops(pattern, 30, 1, [](int64_t done) { return done < 7; });
  EXPECT_EQ(stopped.sources, 7);
}

TEST(SampledHops, PairsWithoutAPathAreAShare) {
  // blocks(8) on 800 tokens: 8 * 7 / 2 * 100 pairs of 800 * 799 / 2 have a path.
  const SampledHops sampled = sampled_hops(Pattern("blocks(8)", 800), 400, 3);
  EXPECT_NEAR(sampled.unreachable, 1 - 2800.0 / 319600, 0.003);
  EXPECT_EQ(sampled.diameter_at_least, 1);
  EXPECT_THROW(sampled_hops(Pattern("2^k", 1), 30, 0), Error);
  EXPECT_THROW(sampled_hops(Pattern("2^k", 10), 1, 0), Error);
}

}  // namespace
}  // namespace hopmix

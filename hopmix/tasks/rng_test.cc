#include "hopmix/tasks/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

namespace hopmix::tasks {
namespace {

// Pearson's statistic against equal counts.
double chi_square(const std::vector<int64_t>& counts) {
  const double total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const double expected = total / static_cast<double>(counts.size());
  double sum = 0;
  for (const int64_t count : counts) {
    const double off = static_cast<double>(count) - expected;
    sum += off * off / expected;
  }
  return sum;
}

TEST(Rng, SplitMixGivesThePublishedNumbers) {
  uint64_t state = 1234567;
  for (const uint64_t expected : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                  4593380528125082431u, 16408922859458223821u}) {
    EXPECT_EQ(split_mix(state), expected);
  }
}

TEST(Rng, XoshiroGivesThePublishedNumbers) {
  Rng rng(std::array<uint64_t, 4>{1, 2, 3, 4});
  for (const uint64_t expected :
       {uint64_t{11520}, uint64_t{0}, uint64_t{1509978240}, uint64_t{1215971899390074240},
        uint64_t{1216172134540287360}, uint64_t{607988272756665600}, 16172922978634559625u,
        uint64_t{8476171486693032832}, 10595114339597558777u, uint64_t{2904607092377533576}}) {
    EXPECT_EQ(rng.next(), expected);
  }
}

TEST(Rng, StreamsDoNotMeet) {
  // Neighbouring seeds and streams, where a poor mix would produce correlated numbers.
  std::set<uint64_t> first;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    for (uint64_t stream = 0; stream < 64; ++stream) first.insert(Rng(seed, stream).next());
  }
  EXPECT_EQ(first.size(), 64u * 64u);
}

TEST(Rng, BelowIsUniform) {
  for (const int64_t n : {2, 3, 7, 20, 64, 100}) {
    Rng rng(5, static_cast<uint64_t>(n));
    std::vector<int64_t> counts(static_cast<size_t>(n));
    for (int64_t draw = 0; draw < 1000 * n; ++draw) {
      const int64_t value = rng.below(n);
      ASSERT_GE(value, 0);
      ASSERT_LT(value, n);
      ++counts[static_cast<size_t>(value)];
    }
    // Mean n - 1, variance 2 (n - 1).
    const double freedom = static_cast<double>(n - 1);
    EXPECT_LT(chi_square(counts), freedom + 5 * std::sqrt(2 * freedom)) << n;
  }
}

TEST(Rng, BelowHasNoBiasInLargeRanges) {
  // n = 3/8 of 2^64: without rejection, three numbers would map to each value below 2^62 and two to
  // the others, so that these come 3 times in 4 instead of 2 in 3.
  const int64_t n = int64_t{3} << 61;
  Rng rng(9);
  const int draws = 30000;
  int low = 0;
  for (int i = 0; i < draws; ++i) low += rng.below(n) < (int64_t{1} << 62);
  EXPECT_NEAR(low / static_cast<double>(draws), 2.0 / 3, 4 * std::sqrt(2.0 / 9 / draws));
}

TEST(Rng, BelowOneIsZero) {
  Rng rng(1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(rng.below(1), 0);
}

TEST(Rng, ShuffleGivesEveryOrderEqually) {
  std::map<std::vector<int64_t>, int64_t> seen;
  Rng rng(2);
  for (int draw = 0; draw < 24000; ++draw) {
    std::vector<int64_t> items{0, 1, 2, 3};
    rng.shuffle(items);
    ++seen[items];
  }
  ASSERT_EQ(seen.size(), 24u);
  std::vector<int64_t> counts;
  for (const auto& [order, count] : seen) counts.push_back(count);
  EXPECT_LT(chi_square(counts), 23 + 5 * std::sqrt(46.0));
}

TEST(Rng, ShuffleOfNothingAndOfOne) {
  Rng rng(3);
  std::vector<int64_t> none, one{7};
  rng.shuffle(none);
  rng.shuffle(one);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(one, std::vector<int64_t>{7});
}

}  // namespace
}  // namespace hopmix::tasks

#include "hopmix/analysis/hops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <queue>

#include "hopmix/analysis/cost.h"

namespace hopmix {
namespace {

// d(i, j) for every j, by breadth-first search from i along reads; -1 where there is no path.
std::vector<int> search_from(const Csr& pattern, int64_t i) {
  std::vector<int> distance(pattern.rows(), -1);
  distance[i] = 0;
  std::queue<int64_t> queue({i});
  for (; !queue.empty(); queue.pop()) {
    const int64_t at = queue.front();
    for (int64_t e = pattern.row_ptr[at]; e < pattern.row_ptr[at + 1]; ++e) {
      int& there = distance[pattern.cols[e]];
      if (there >= 0) continue;
      there = distance[at] + 1;
      queue.push(pattern.cols[e]);
    }
  }
  return distance;
}

void expect_literal(const Hops& hops, const Csr& pattern, const std::string& what) {
  int64_t unreachable = 0, largest = 0, total = 0, count = 0;
  std::vector<int64_t> pairs(pattern.rows() + 1);
  for (int64_t i = 0; i < pattern.rows(); ++i) {
    const std::vector<int> distance = search_from(pattern, i);
    for (int64_t j = 0; j < i; ++j) {
      if (distance[j] < 0) {
        ++unreachable;
        continue;
      }
      ++pairs[distance[j]];
      ++count;
      total += distance[j];
      largest = std::max<int64_t>(largest, distance[j]);
    }
  }
  pairs.resize(count > 0 ? largest + 1 : 0);
  EXPECT_EQ(hops.pairs, pairs) << what;
  EXPECT_EQ(hops.unreachable, unreachable) << what;
  ASSERT_EQ(hops.diameter.has_value(), unreachable == 0) << what;
  ASSERT_EQ(hops.mean.has_value(), unreachable == 0) << what;
  if (unreachable > 0) return;
  EXPECT_EQ(*hops.diameter, largest) << what;
  EXPECT_EQ(*hops.mean, count > 0 ? static_cast<double>(total) / static_cast<double>(count) : 0)
      << what;
}

struct Row {
  const char* spec;
  int64_t reads_total, reads_max, cache_peak, diameter;
  double mean;  // to two decimals
};

// docs/patterns.md, n = 300.
TEST(Hops, CheckValues) {
  for (const Row& row : {
           Row{"2^k", 2189, 9, 172, 8, 3.65},
           Row{"cached(2^k)", 2189, 9, 9, 8, 3.77},
           Row{"k^2+1", 3597, 18, 267, 4, 2.50},
           Row{"cached(k^2+1)", 2803, 14, 14, 5, 3.07},
           Row{"k^3+1", 1652, 7, 209, 7, 4.06},
           Row{"cached(k^3+1)", 1467, 6, 6, 9, 4.51},
           Row{"fib", 2992, 12, 211, 6, 2.99},
           Row{"cached(fib)", 2497, 11, 11, 7, 3.50},
       }) {
    const Pattern pattern(row.spec, 300);
    const Cost spent = cost(pattern);
    EXPECT_EQ(spent.reads_total, row.reads_total) << row.spec;
    EXPECT_EQ(spent.reads_max, row.reads_max) << row.spec;
    EXPECT_EQ(spent.cache_peak, row.cache_peak) << row.spec;
    const Hops result = hops(pattern);
    ASSERT_TRUE(result.diameter && result.mean) << row.spec;
    EXPECT_EQ(*result.diameter, row.diameter) << row.spec;
    EXPECT_EQ(std::round(*result.mean * 100), std::round(row.mean * 100))
        << row.spec << " " << *result.mean;
    EXPECT_EQ(result.unreachable, 0) << row.spec;
  }
}

TEST(Hops, EqualsASearchFromEveryToken) {
  for (const char* spec : {"dense", "window(1)", "window(3)", "2^k", "cached(2^k)", "cached(k^2+1)",
                           "strided(5)", "global(4)", "global(1)|window(1)", "blocks(8)",
                           "blocks(1)", "random(1,1)", "random(3,2)", "random(2,3)|window(1)",
                           "fenwick", "offsets(2)", "offsets(6,9,20)", "fenwick|strided(7)"}) {
    for (const int64_t n : {0, 1, 2, 3, 63, 64, 65, 100, 129}) {
      const Pattern pattern(spec, n);
      const Csr csr = to_csr(pattern);
      const std::string what = std::string(spec) + " n " + std::to_string(n);
      expect_literal(hops(pattern), csr, what);  // the shortcut, if there is one
      expect_literal(hops(csr), csr, what);
    }
  }
}

TEST(Hops, EqualsASearchOnRandomPatterns) {
  for (int seed = 0; seed < 40; ++seed) {
    const std::string spec =
        "random(" + std::to_string(1 + seed % 5) + "," + std::to_string(seed) + ")";
    const Csr csr = to_csr(Pattern(spec, 90 + seed));
    expect_literal(hops(csr), csr, spec);
  }
}

TEST(Hops, OfPowersOfTwoAreTheOnesInBinary) {
  const std::vector<int32_t> hops = hops_by_distance(Pattern("2^k", 100'000).offsets(), 100'000);
  for (uint32_t s = 0; s < hops.size(); ++s) ASSERT_EQ(hops[s], std::popcount(s)) << s;
}

TEST(Hops, OfSquaresPlusOneAreAtMostFour) {
  const std::vector<int32_t> hops = hops_by_distance(Pattern("k^2+1", 100'000).offsets(), 100'000);
  for (size_t s = 1; s < hops.size(); ++s) ASSERT_TRUE(hops[s] >= 1 && hops[s] <= 4) << s;
}

TEST(Hops, UnreachableDistancesAreMarked) {
  EXPECT_EQ(hops_by_distance({6, 9, 20}, 13),
            (std::vector<int32_t>{0, -1, -1, -1, -1, -1, 1, -1, -1, 1, -1, -1, 2}));
  EXPECT_EQ(hops_by_distance({6, 9, 20}, 44)[43],
            -1);  // the largest number that 6, 9 and 20 cannot make
  EXPECT_EQ(hops_by_distance({}, 2), (std::vector<int32_t>{0, -1}));
  EXPECT_EQ(hops_by_distance({1}, 0), std::vector<int32_t>{});
}

TEST(Hops, SixteenThousandTokens) {
  const int64_t n = 16384;
  const Hops chain = hops(Pattern("window(1)", n));
  EXPECT_EQ(chain.diameter, n - 1);
  EXPECT_NEAR(chain.mean.value(), static_cast<double>(n + 1) / 3, 1e-9);
  const Hops powers = hops(to_csr(Pattern("2^k", n))), shortcut = hops(Pattern("2^k", n));
  EXPECT_EQ(powers.pairs, shortcut.pairs);
  EXPECT_EQ(powers.diameter, 14);  // from token 2^14 - 1 to token 0
}

}  // namespace
}  // namespace hopmix

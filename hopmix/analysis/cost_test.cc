#include "hopmix/analysis/cost.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hopmix {
namespace {

// The definitions, taken literally, on a dense matrix.
Cost literal(const Pattern& pattern) {
  const int64_t n = pattern.size();
  std::vector<std::vector<bool>> reads(n, std::vector<bool>(n));
  std::vector<int32_t> cols;
  Cost cost;
  for (int64_t i = 0; i < n; ++i) {
    pattern.row(i, cols);
    for (const int32_t j : cols) reads[i][j] = true;
    const int64_t count = std::count(reads[i].begin(), reads[i].end(), true);
    cost.reads_total += count;
    cost.reads_max = std::max(cost.reads_max, count);
  }
  for (int64_t i = 0; i < n; ++i) {
    int64_t live = 0;
    for (int64_t j = 0; j <= i; ++j) {
      bool read_later = false;
      for (int64_t later = i + 1; later < n; ++later) read_later = read_later || reads[later][j];
      live += read_later;
    }
    cost.cache.push_back(live);
    cost.cache_peak = std::max(cost.cache_peak, live);
  }
  return cost;
}

void expect_equal(const Cost& a, const Cost& b, const std::string& what) {
  EXPECT_EQ(a.reads_total, b.reads_total) << what;
  EXPECT_EQ(a.reads_max, b.reads_max) << what;
  EXPECT_EQ(a.cache, b.cache) << what;
  EXPECT_EQ(a.cache_peak, b.cache_peak) << what;
}

TEST(Cost, EqualsItsDefinition) {
  for (const char* spec :
       {"dense", "window(3)", "2^k", "cached(k^2+1)", "strided(5)", "global(4)", "blocks(8)",
        "blocks(1)", "random(4,1)", "fenwick", "offsets(9)", "2^k|global(2)"}) {
    for (const int64_t n : {0, 1, 2, 63, 64, 65, 100}) {
      const Pattern pattern(spec, n);
      const Cost expected = literal(pattern);
      expect_equal(cost(pattern), expected, spec);
      expect_equal(cost(to_csr(pattern)), expected, spec);
    }
  }
}

TEST(Cost, OfAPatternThatInheritsTheCacheIsTheNextRow) {
  for (const char* spec : {"dense", "window(9)", "global(4)", "blocks(8)", "fenwick", "cached(2^k)",
                           "cached(fib)", "cached(k^2+1)|global(3)"}) {
    const Pattern pattern(spec, 300);
    ASSERT_TRUE(pattern.inherits());
    const Cost result = cost(pattern);
    std::vector<int32_t> next;
    for (int64_t i = 0; i + 1 < 300; ++i) {
      pattern.row(i + 1, next);
      ASSERT_EQ(result.cache[i], static_cast<int64_t>(next.size())) << spec << " after " << i;
    }
    EXPECT_EQ(result.cache[299], 0);
  }
}

TEST(Cost, OfAMillionTokens) {
  // window(w): 0, 1, ..., w - 1 reads while it fills, then w each.
  const int64_t n = 1'000'000, w = 25;
  const Cost result = cost(Pattern("window(25)", n));
  EXPECT_EQ(result.reads_total, w * (w - 1) / 2 + (n - w) * w);
  EXPECT_EQ(result.reads_max, w);
  EXPECT_EQ(result.cache_peak, w);
}

}  // namespace
}  // namespace hopmix

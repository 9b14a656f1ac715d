// The figures of docs/congestion.md: the table, and for which patterns the fractional optimum
// equals the cut bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "hopmix/analysis/congestion.h"

namespace hopmix {
namespace {

Congestion solve(const std::string& spec, int64_t n) {
  CongestionOptions options;
  options.exact_inputs = 256;
  options.integral = false;
  Congestion c = congestion(Pattern(spec, 2 * n), options);
  EXPECT_EQ(c.gap, 0) << spec << " " << n;
  return c;
}

// For exact figures, which are fractions with small denominators.
bool equals_cut(const Congestion& c) { return *c.fractional <= c.cut * (1 + 1e-7); }

// cached(f) for every f whose offsets below 2n are 1 and the subset `bits` of 2 .. 2n-1.
std::string subset(int64_t n, unsigned bits) {
  std::string spec = "cached(offsets(1";
  for (int64_t offset = 2; offset < 2 * n; ++offset) {
    if (bits >> (offset - 2) & 1) spec += "," + std::to_string(offset);
  }
  return spec + "))";
}

TEST(CongestionCached, SmallestCounterexamples) {
  for (int64_t n = 1; n <= 3; ++n) {
    std::vector<std::string> unequal;
    for (unsigned bits = 0; bits < 1u << (2 * n - 2); ++bits) {
      const std::string spec = subset(n, bits);
      if (!equals_cut(solve(spec, n))) unequal.push_back(spec);
    }
    if (n < 3) {
      EXPECT_EQ(unequal.size(), 0u) << n;
    } else {
      EXPECT_EQ(unequal,
                (std::vector<std::string>{"cached(offsets(1,2))", "cached(offsets(1,2,5))"}));
    }
  }
  const Congestion smallest = solve("cached(offsets(1,2))", 3);
  EXPECT_NEAR(*smallest.fractional, 7.0 / 4, 1e-8);
  EXPECT_NEAR(smallest.cut, 3.0 / 2, 1e-12);
  const Congestion second = solve("cached(offsets(1,2,5))", 3);  // k^2+1 on 6 tokens
  EXPECT_NEAR(*second.fractional, 5.0 / 3, 1e-8);
  EXPECT_NEAR(second.cut, 3.0 / 2, 1e-12);
}

TEST(CongestionCached, PaperPatternsMeetTheCutButForFewN) {
  const auto unequal = [](const std::string& spec) {
    std::vector<int64_t> found;
    for (int64_t n = 1; n <= 128; ++n) {
      if (!equals_cut(solve(spec, n))) found.push_back(n);
    }
    return found;
  };
  EXPECT_EQ(unequal("cached(2^k)"), (std::vector<int64_t>{5, 10, 11}));
  EXPECT_EQ(unequal("cached(k^2+1)"), (std::vector<int64_t>{3, 7}));
}

// cached(offsets(1,...,w)) is window(w): for w < n <= 2w its optimum is 1 + n / 2w, not n / w.
TEST(CongestionCached, WindowsDoNotMeetTheCut) {
  for (const int64_t w : {2, 3, 5, 8, 20, 40}) {
    const std::string spec = "window(" + std::to_string(w) + ")";
    for (int64_t n = w + 1; n <= 2 * w; n += 1 + w / 5) {
      const auto ratio = static_cast<double>(n) / static_cast<double>(w);
      const Congestion c = solve(spec, n);
      EXPECT_NEAR(*c.fractional, 1 + ratio / 2, 1e-7) << w << " " << n;
      EXPECT_NEAR(c.cut, ratio, 1e-12) << w << " " << n;
    }
  }
}

// Random offsets starting at 1, with gaps up to 12 that are even, or grow, or grow by a factor.
std::string random_cached(int64_t n, std::mt19937& random) {
  const int64_t widest = 1 + random() % 12, kind = random() % 3, factor = random() % 15;
  std::string spec = "cached(offsets(1";
  int64_t offset = 1;
  for (int64_t k = 0;; ++k) {
    const int64_t growth = kind == 1 ? k : kind == 2 ? offset * (2 + factor) / 10 : 0;
    offset += 1 + random() % widest + growth;
    if (offset >= 2 * n || random() % 20 == 0) return spec + "))";
    spec += "," + std::to_string(offset);
  }
}

TEST(CongestionCached, RandomPatternsMostlyMeetTheCut) {
  std::mt19937 random(7);
  int64_t unequal = 0;
  double most = 0;
  for (int64_t trial = 0; trial < 2000; ++trial) {
    const int64_t n = 3 + random() % 38;
    const Congestion c = solve(random_cached(n, random), n);
    EXPECT_GE(*c.fractional, c.cut * (1 - 1e-8));
    unequal += !equals_cut(c);
    most = std::max(most, *c.fractional - c.cut);
  }
  EXPECT_EQ(unequal, 51);
  EXPECT_NEAR(most, 31.0 / 64, 1e-7);  // window(32), n = 33
  // Large cuts are no guarantee either.
  const Congestion c = solve("cached(offsets(1,7,13,16,21,27,34,48))", 40);
  EXPECT_NEAR(*c.fractional, 54.0 / 7, 1e-7);
  EXPECT_NEAR(c.cut, 7.2, 1e-12);
}

struct Row {
  int64_t n;
  double powers, squares, cached_powers, cached_squares;  // to six decimals
};

TEST(CongestionCached, Table) {
  for (const Row& row : {
           Row{7, 2.25, 1.7, 2.333333, 2.4},
           Row{8, 1, 2.2, 2.333333, 2.666667},
           Row{15, 2.708333, 1.75, 3.75, 5},
           Row{16, 1, 2.1, 3.75, 5.333333},
           Row{31, 3.166667, 1.631579, 6.2, 7},
           Row{32, 1, 2.038462, 6.2, 7},
           Row{63, 3.633929, 1.716418, 10.5, 10.5},
           Row{64, 1, 2.020833, 10.5, 10.666667},
           Row{127, 4.098214, 1.520492, 18.142857, 15.5},
           Row{128, 1, 2.008197, 18.142857, 15.5},
           Row{255, 4.577083, 2.509921, 31.875, 22.272727},
           Row{256, 1, 2.042375, 31.875, 22.454545},
       }) {
    EXPECT_NEAR(*solve("2^k", row.n).fractional, row.powers, 6e-7) << row.n;
    EXPECT_NEAR(*solve("k^2+1", row.n).fractional, row.squares, 6e-7) << row.n;
    EXPECT_NEAR(*solve("cached(2^k)", row.n).fractional, row.cached_powers, 6e-7) << row.n;
    EXPECT_NEAR(*solve("cached(k^2+1)", row.n).fractional, row.cached_squares, 6e-7) << row.n;
  }
}

// Beyond the exact part of the table, the cut bound from below and an integral routing from above
// differ by less than 1.
TEST(CongestionCached, LargeTable) {
  const auto expect = [](const char* spec, int64_t n, double cut, int64_t upper) {
    const Congestion c = congestion(Pattern(spec, 2 * n));
    EXPECT_NEAR(c.cut, cut, 6e-5) << spec << " " << n;
    EXPECT_EQ(c.upper, upper) << spec << " " << n;
    EXPECT_LE(c.gap, 0.02) << spec << " " << n;
  };
  expect("cached(2^k)", 512, 56.7778, 57);
  expect("cached(2^k)", 1024, 102.3, 103);
  expect("cached(2^k)", 2048, 186.0909, 187);
  expect("cached(k^2+1)", 512, 31.75, 32);
  expect("cached(k^2+1)", 1024, 46.1364, 47);
  expect("cached(k^2+1)", 2048, 62.375, 63);
}

// (n - 1) / log2 n is proven for n = 2^m by the cut between tokens n - 2 and n - 1.
TEST(CongestionCached, PowersOfTwo) {
  for (int64_t m = 1; m <= 10; ++m) {
    const int64_t n = int64_t{1} << m;
    CongestionOptions options;
    options.fractional = false;
    const Congestion c = congestion(Pattern("cached(2^k)", 2 * n), options);
    EXPECT_GE(c.cut * static_cast<double>(m), static_cast<double>(n - 1) * (1 - 1e-12)) << n;
    if (m >= 3) {
      EXPECT_NEAR(c.cut * static_cast<double>(m), static_cast<double>(n - 1), 1e-9 * c.cut) << n;
    }
  }
}

}  // namespace
}  // namespace hopmix

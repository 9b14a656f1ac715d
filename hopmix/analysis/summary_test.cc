#include "hopmix/analysis/summary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hopmix/analysis/hops.h"
#include "hopmix/base/error.h"

namespace hopmix {
namespace {

Summary costs(const std::string& spec, int64_t n) {
  SummaryOptions options;
  options.congestion = false;
  return summarize(spec, n, options);
}

TEST(Summary, CheckValues) {
  const Summary summary = costs("cached(k^2+1)", 300);
  EXPECT_EQ(summary.reads_total, 2803);
  EXPECT_EQ(summary.reads_max, 14);
  EXPECT_EQ(summary.cache_peak, 14);
  EXPECT_EQ(summary.diameter, 5);
  EXPECT_NEAR(summary.mean_hops.value(), 3.07, 0.005);
  EXPECT_EQ(summary.sources, 0);
  EXPECT_TRUE(summary.connected);
  EXPECT_FALSE(summary.congestion);
}

TEST(Summary, GrowthOfTheNamedPatterns) {
  const auto growth = [](const std::string& spec) {
    const Summary summary = costs(spec, 1024);
    return summary.reads_growth->text() + ", " + summary.cache_growth->text();
  };
  EXPECT_EQ(growth("dense"), "n^1.00, n^1.00");
  EXPECT_EQ(growth("window(8)"), "1, 1");
  EXPECT_EQ(growth("window(64)"), "1, 1");
  EXPECT_EQ(growth("cached(2^k)"), "log n, log n");
  EXPECT_EQ(growth("2^k"), "log n, n^1.00");
  EXPECT_EQ(growth("fenwick"), "log n, log n");
  // About (2/3) sqrt n + 1/2, so the exponent is slightly below its limit, 1/2.
  EXPECT_NEAR(costs("k^2+1", 1024).reads_growth->exponent, 0.5, 0.02);
  EXPECT_NEAR(costs("k^2+1", 65536).reads_growth->exponent, 0.5, 0.005);
  EXPECT_EQ(costs("cached(2^k)", 1024).hops_growth->text(), "log n");
  EXPECT_NEAR(costs("window(1)", 1024).hops_growth->exponent, 1, 0.02);  // (n + 1) / 3
}

TEST(Summary, ShortSequences) {
  for (const int64_t n : {0, 1, 2, 3, 15}) {
    const Summary summary = summarize("2^k", n);
    EXPECT_FALSE(summary.reads_growth) << n;
    EXPECT_TRUE(summary.diameter) << n;
    EXPECT_TRUE(summary.congestion) << n;
  }
}

TEST(Summary, WhatIsNotConnectedHasNoDiameter) {
  const Summary summary = summarize("blocks(8)", 64);
  EXPECT_FALSE(summary.connected);
  EXPECT_FALSE(summary.diameter);
  EXPECT_FALSE(summary.mean_hops);
  ASSERT_TRUE(summary.congestion);
  EXPECT_FALSE(summary.congestion->reachable);
}

TEST(Summary, ManyTokensAreSampled) {
  const int64_t n = kExactHops + 1;
  SummaryOptions options;
  options.congestion = false;
  options.sources = 40;
  const Summary sampled = summarize("cached(2^k)", n, options);
  EXPECT_EQ(sampled.sources, 40);
  EXPECT_GT(sampled.half_width, 0);
  const Hops exact = hops(Pattern("cached(2^k)", n));
  // The true mean is within the interval for this seed, as for 95 of 100 seeds.
  EXPECT_NEAR(sampled.mean_hops.value(), *exact.mean, sampled.half_width);
  EXPECT_LE(sampled.diameter.value(), *exact.diameter);
  EXPECT_EQ(summarize("2^k", n, options).sources, 0);  // an f pattern needs no sample
  EXPECT_FALSE(summarize("blocks(8)", n, options).connected);
}

TEST(Summary, BoundsHoldTogether) {
  for (const char* spec : {"2^k", "cached(2^k)", "window(4)", "random(3,1)|window(1)", "fenwick"}) {
    const Summary summary = summarize(spec, 63);
    const Congestion& known = summary.congestion.value();
    ASSERT_TRUE(known.reachable && known.fractional && known.upper) << spec;
    EXPECT_EQ(known.inputs, 31);
    EXPECT_LE(known.lower, *known.fractional + 1e-9) << spec;
    EXPECT_LE(known.cut, *known.fractional + 1e-9) << spec;
    EXPECT_LE(*known.fractional, static_cast<double>(*known.upper) + 1e-9) << spec;
  }
}

TEST(Summary, SaysWhatItDoesAndStops) {
  SummaryOptions options;
  std::vector<std::string> seen;
  options.progress = [&](const std::string& what) {
    seen.push_back(what);
    return what != "hops";
  };
  const Summary summary = summarize("cached(2^k)", 64, options);
  EXPECT_EQ(seen, (std::vector<std::string>{"reads and cache", "hops"}));
  EXPECT_FALSE(summary.diameter);
  EXPECT_FALSE(summary.congestion);
  EXPECT_THROW(summarize("window(0)", 64), Error);
}

}  // namespace
}  // namespace hopmix

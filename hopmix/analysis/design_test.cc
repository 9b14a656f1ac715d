#include "hopmix/analysis/design.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "hopmix/analysis/cost.h"
#include "hopmix/analysis/hops.h"
#include "hopmix/base/error.h"

namespace hopmix {
namespace {

const DesignPoint* find(const Design& design, const std::string& spec) {
  for (const DesignPoint& point : design.points) {
    if (point.spec == spec) return &point;
  }
  return nullptr;
}

// Recomputes every figure from the spec, and the front from its definition.
void expect_sound(const Design& design, const DesignOptions& options) {
  for (const DesignPoint& point : design.points) {
    const Pattern pattern(point.spec, options.n);
    const Cost spent = cost(pattern);
    const Hops reach = hops(pattern);
    EXPECT_EQ(point.reads, spent.reads_max) << point.spec;
    EXPECT_EQ(point.cache, spent.cache_peak) << point.spec;
    EXPECT_EQ(point.mean_hops, reach.mean) << point.spec;
    EXPECT_EQ(point.diameter, reach.diameter) << point.spec;
    const bool within = point.reads <= options.reads.value_or(options.n) &&
                        point.cache <= options.cache.value_or(options.n);
    EXPECT_EQ(point.within, within) << point.spec;
    EXPECT_TRUE(point.reference || within) << point.spec << " is over the limits";
    EXPECT_TRUE(point.reference || point.mean_hops) << point.spec << " does not reach all";
    bool beaten = false;
    for (const DesignPoint& other : design.points) {
      beaten |= other.reads <= point.reads && other.cache <= point.cache &&
                other.mean_hops <= point.mean_hops &&
                (other.reads < point.reads || other.cache < point.cache ||
                 other.mean_hops < point.mean_hops);
    }
    if (options.minimize == Objective::kHops && point.front) {
      EXPECT_FALSE(beaten) << point.spec;
    }
    if (point.beaten_by && options.minimize == Objective::kHops) {
      const DesignPoint& better = design.points.at(*point.beaten_by);
      EXPECT_FALSE(better.reference);
      EXPECT_LE(better.reads, point.reads);
      EXPECT_LE(better.cache, point.cache);
      EXPECT_LT(*better.mean_hops, *point.mean_hops);
    }
  }
}

TEST(Design, ObeysItsLimits) {
  for (const auto& [reads, cache] :
       std::vector<std::array<int64_t, 2>>{{1, 1}, {3, 3}, {4, 20}, {12, 16}, {20, 10}}) {
    DesignOptions options;
    options.n = 200;
    options.reads = reads;
    options.cache = cache;
    options.evaluations = 30;
    const Design found = design(options);
    EXPECT_FALSE(found.stopped);
    EXPECT_GT(found.evaluations, 30);
    expect_sound(found, options);
    for (const std::string& spec : reference_patterns()) {
      ASSERT_TRUE(find(found, spec)) << spec;
      EXPECT_TRUE(find(found, spec)->reference);
    }
  }
}

// The search finds fewer hops than the paper's patterns at their own reads and cache, n = 1024.
TEST(Design, BeatsThePapersPatterns) {
  for (const char* spec : {"2^k", "cached(2^k)", "k^2+1", "cached(k^2+1)"}) {
    const Pattern pattern(spec, 1024);
    const Cost spent = cost(pattern);
    DesignOptions options;
    options.reads = spent.reads_max;
    options.cache = spent.cache_peak;
    options.evaluations = 150;
    options.ladder = false;
    const Design found = design(options);
    expect_sound(found, options);
    const DesignPoint* paper = find(found, spec);
    ASSERT_TRUE(paper);
    ASSERT_TRUE(paper->beaten_by) << spec << " stands";
    const DesignPoint& better = found.points[*paper->beaten_by];
    const Pattern winner(better.spec, 1024);
    EXPECT_LE(cost(winner).reads_max, spent.reads_max);
    EXPECT_LE(cost(winner).cache_peak, spent.cache_peak);
    EXPECT_LT(*hops(winner).mean, *hops(pattern).mean);
  }
}

TEST(Design, RepeatsBySeed) {
  DesignOptions options;
  options.n = 129;
  options.reads = 6;
  options.evaluations = 40;
  const auto specs = [&](uint64_t seed) {
    options.seed = seed;
    std::vector<std::string> list;
    for (const DesignPoint& point : design(options).points) list.push_back(point.spec);
    return list;
  };
  const std::vector<std::string> first = specs(0);
  EXPECT_EQ(first, specs(0));
  EXPECT_NE(first, specs(1));
}

TEST(Design, StopsWithTheBestSoFar) {
  DesignOptions options;
  options.n = 300;
  options.reads = 8;
  int64_t asked = 0;
  options.progress = [&](const DesignProgress& progress) {
    EXPECT_LE(progress.cell, progress.cells);
    return ++asked < 15'000;  // within the first limits
  };
  const Design found = design(options);
  EXPECT_TRUE(found.stopped);
  EXPECT_LT(found.evaluations, 16'000);
  expect_sound(found, options);
  EXPECT_GT(found.points.size(), reference_patterns().size());
}

TEST(Design, LittleCongestionWithinACache) {
  DesignOptions options;
  options.n = 64;
  options.reads = 4;
  options.cache = 8;
  options.minimize = Objective::kCongestion;
  options.evaluations = 30;
  const Design found = design(options);
  double best = INFINITY;
  for (const DesignPoint& point : found.points) {
    ASSERT_TRUE(point.congestion) << point.spec;
    if (point.within && point.congestion->fractional) {
      best = std::min(best, *point.congestion->fractional);
    }
  }
  // 32 paths through 8 tokens: no less than 4, which offsets(1,8) has by steps of 8.
  EXPECT_NEAR(best, 4, 0.08);
  expect_sound(found, options);
}

// Without a limit on the cache, only the distance matters: an offset of n / 2 copies in one hop.
TEST(Design, LittleCongestionWithinReads) {
  DesignOptions options;
  options.n = 96;
  options.reads = 5;
  options.minimize = Objective::kCongestion;
  options.evaluations = 50;
  options.ladder = false;
  const Design found = design(options);
  double best = INFINITY;
  for (const DesignPoint& point : found.points) {
    if (!point.reference) best = std::min(best, *point.congestion->fractional);
  }
  EXPECT_NEAR(best, 1, 1e-9);
  expect_sound(found, options);
}

TEST(Design, BadInputIsNamed) {
  const auto message = [](auto change) -> std::string {
    DesignOptions options;
    change(options);
    try {
      design(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message([](DesignOptions& o) { o.n = 1; }), "n 1 must be at least 2");
  EXPECT_TRUE(message([](DesignOptions& o) { o.n = 8193; }).starts_with("n 8193 must be at most"));
  EXPECT_EQ(message([](DesignOptions& o) { o.reads = 0; }), "reads 0 must be at least 1");
  EXPECT_EQ(message([](DesignOptions& o) { o.cache = 0; }), "cache 0 must be at least 1");
  EXPECT_EQ(message([](DesignOptions& o) { o.evaluations = 0; }),
            "evaluations 0 must be at least 1");
}

}  // namespace
}  // namespace hopmix

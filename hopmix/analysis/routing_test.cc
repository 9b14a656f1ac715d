#include "hopmix/analysis/routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hopmix/analysis/routing_bounds.h"
#include "hopmix/analysis/routing_reference.h"

namespace hopmix {
namespace {

TEST(PathFinder, FindsTheLightestOfAllPaths) {
  int64_t unreachable = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const CopyProblem problem =
        random_problem(1 + static_cast<int64_t>(seed % 5), 30, seed % 2 == 0 ? 0 : 40, seed);
    std::mt19937_64 random(seed);
    std::vector<double> weight(problem.tokens());
    for (double& w : weight) w = static_cast<double>(random() % 8) / 4;  // exact sums, ties, zeros
    PathFinder finder(problem);
    for (int64_t c = 0; c < problem.inputs; ++c) {
      double least = std::numeric_limits<double>::infinity();
      for (const Path& path : all_paths(problem, c)) {
        double total = 0;
        for (const int32_t v : path) total += weight[v];
        least = std::min(least, total);
      }
      ASSERT_EQ(finder.weigh(c, weight), least) << "seed " << seed << ", input " << c;
      if (std::isinf(least)) {
        ++unreachable;
        continue;
      }
      const Path path = finder.path();
      ASSERT_TRUE(is_path(problem, c, path)) << "seed " << seed << ", input " << c;
      double total = 0;
      for (const int32_t v : path) total += weight[v];
      ASSERT_EQ(total, least) << "seed " << seed << ", input " << c;
    }
  }
  EXPECT_GT(unreachable, 10);
}

TEST(Routing, LoadsAreFlowsThroughTokens) {
  const CopyProblem problem = copy_problem(Pattern("window(2)", 4));
  const std::vector<Flow> flows = {{{{2, 0}, {2, 1, 0}}, {0.75, 0.25}}, {{{3, 1}}, {1.0}}};
  EXPECT_EQ(loads(problem, flows), (std::vector<double>{1, 1.25, 1, 1}));
}

TEST(RoutingBounds, DistanceIsThatOfTheShortestOfAllPaths) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const CopyProblem problem =
        random_problem(1 + static_cast<int64_t>(seed % 5), 25, seed % 2 == 0 ? 0 : 40, seed);
    int64_t unreachable = 0;
    double hops = 0;
    for (int64_t c = 0; c < problem.inputs; ++c) {
      size_t shortest = std::numeric_limits<size_t>::max();
      for (const Path& path : all_paths(problem, c)) shortest = std::min(shortest, path.size());
      if (shortest == std::numeric_limits<size_t>::max()) {
        ++unreachable;
      } else {
        hops += static_cast<double>(shortest) - 1;
      }
    }
    const DistanceBound found = distance_bound(problem);
    EXPECT_EQ(found.unreachable, unreachable) << seed;
    const double mean = hops / static_cast<double>(problem.inputs);
    if (unreachable > 0) {
      EXPECT_TRUE(std::isinf(found.bound)) << seed;
    } else {
      EXPECT_DOUBLE_EQ(found.bound, (mean + 1) / 2) << seed;
    }
  }
}

// The definition in routing_bounds.h, set by set; without `outputs`, only crossing paths count.
double literal_cut_bound(const CopyProblem& problem, bool outputs = true) {
  const int64_t n = problem.inputs;
  double bound = 0;
  for (int64_t t = 0; t + 1 < 2 * n; ++t) {
    int64_t must = 0, carriers = 0;
    for (int64_t c = 0; c < n; ++c) must += c <= t && t < c + n;
    for (int64_t j = std::max<int64_t>(0, t - n + 1); j <= t; ++j) {
      bool carries = false;
      for (int64_t i = t + 1; i < 2 * n && i <= t + n; ++i) {
        carries = carries || is_read(problem, i, j);
      }
      carriers += carries;
      must += outputs && carries && j >= n;
    }
    bound = std::max(bound, static_cast<double>(must) / static_cast<double>(carriers));
  }
  return bound;
}

TEST(RoutingBounds, CutIsItsDefinition) {
  for (const char* spec : {"2^k", "k^2+1", "cached(2^k)", "cached(k^2+1)", "cached(fib)",
                           "window(1)", "window(7)", "fenwick", "strided(3)", "global(2)",
                           "blocks(4)", "random(2,1)", "random(3,5)|window(2)", "dense"}) {
    for (const int64_t n : {0, 1, 2, 3, 7, 31, 32, 33}) {
      const CopyProblem problem = copy_problem(Pattern(spec, 2 * n));
      EXPECT_DOUBLE_EQ(cut_bound(problem), literal_cut_bound(problem)) << spec << " " << n;
    }
  }
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const CopyProblem problem = random_problem(static_cast<int64_t>(seed % 20), 10, 30, seed);
    EXPECT_DOUBLE_EQ(cut_bound(problem), literal_cut_bound(problem)) << seed;
  }
}

TEST(RoutingBounds, OutputsSharpenTheCut) {  // figures of docs/congestion.md
  const CopyProblem problem = copy_problem(Pattern("cached(k^2+1)", 26));
  EXPECT_DOUBLE_EQ(literal_cut_bound(problem, false), 10.0 / 3);
  EXPECT_DOUBLE_EQ(cut_bound(problem), 4);
}

// Every path that the cut bound counts passes through a carrier: checks the proof on all paths.
TEST(RoutingBounds, CrossingPathsPassACarrier) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const CopyProblem problem = random_problem(5, 30, 20, seed);
    for (int64_t c = 0; c < problem.inputs; ++c) {
      for (const Path& path : all_paths(problem, c)) {
        for (int64_t t = c; t < c + problem.inputs; ++t) {
          const auto lands =
              std::find_if(path.begin(), path.end(), [&](int32_t v) { return v <= t; });
          EXPECT_GT(*lands, t - problem.inputs);
          EXPECT_LE(*(lands - 1), t + problem.inputs);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hopmix

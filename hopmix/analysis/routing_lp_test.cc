#include "hopmix/analysis/routing_lp.h"

#include <gtest/gtest.h>

#include <ClpSimplex.hpp>
#include <cmath>
#include <string>

#include "hopmix/analysis/routing_bounds.h"
#include "hopmix/analysis/routing_integral.h"
#include "hopmix/analysis/routing_reference.h"

namespace hopmix {
namespace {

// The other formulation: a flow on every read for every input, conserved at every token; minimizes
// c such that the flow into each token (plus 1 at the input's own output) is at most c.
double edge_flow_optimum(const CopyProblem& problem) {
  const int64_t n = problem.inputs, tokens = problem.tokens();
  // Rows: load of token v; then for input c, the balance of token v.
  const auto balance = [&](int64_t c, int64_t v) { return static_cast<int>((c + 1) * tokens + v); };
  ClpSimplex model;
  model.setLogLevel(0);
  model.resize(static_cast<int>((n + 1) * tokens), 0);
  for (int64_t v = 0; v < tokens; ++v) {
    const int64_t sources = v >= n ? 1 : 0;
    model.setRowBounds(static_cast<int>(v), -COIN_DBL_MAX, -static_cast<double>(sources));
    for (int64_t c = 0; c < n; ++c) {
      const double out = v == c + n ? 1 : v == c ? -1 : 0;
      model.setRowBounds(balance(c, v), out, out);
    }
  }
  std::vector<int> rows(tokens);
  for (int64_t v = 0; v < tokens; ++v) rows[v] = static_cast<int>(v);
  const std::vector<double> minus(tokens, -1.0);
  model.addColumn(static_cast<int>(tokens), rows.data(), minus.data(), 0, COIN_DBL_MAX, 1);
  for (int64_t c = 0; c < n; ++c) {
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t e = problem.reads.row_ptr[i]; e < problem.reads.row_ptr[i + 1]; ++e) {
        const int32_t j = problem.reads.cols[e];
        const int into[] = {j, balance(c, i), balance(c, j)};
        const double value[] = {1, 1, -1};
        model.addColumn(3, into, value, 0, COIN_DBL_MAX, 0);
      }
    }
  }
  EXPECT_EQ(model.primal(), 0);
  EXPECT_TRUE(model.isProvenOptimal());
  return model.objectiveValue();
}

FractionalRouting solve(const CopyProblem& problem, double start_gap = 0.01) {
  WeightOptions start;
  start.gap = start_gap;
  start.max_rounds = 50;
  return route_exactly(problem, route_by_weights(problem, start));
}

void expect_valid(const CopyProblem& problem, const FractionalRouting& routing,
                  const std::string& what) {
  ASSERT_EQ(static_cast<int64_t>(routing.flows.size()), problem.inputs) << what;
  for (int64_t c = 0; c < problem.inputs; ++c) {
    const Flow& flow = routing.flows[c];
    double total = 0;
    ASSERT_EQ(flow.paths.size(), flow.shares.size()) << what;
    for (size_t p = 0; p < flow.paths.size(); ++p) {
      EXPECT_TRUE(is_path(problem, c, flow.paths[p])) << what;
      EXPECT_GT(flow.shares[p], 0) << what;
      total += flow.shares[p];
    }
    EXPECT_NEAR(total, 1, 1e-12) << what;
  }
  const std::vector<double> load = loads(problem, routing.flows);
  EXPECT_NEAR(*std::max_element(load.begin(), load.end()), routing.congestion, 1e-12) << what;
}

TEST(RoutingLp, EqualsTheEdgeFlowProgram) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const CopyProblem problem =
        random_problem(1 + static_cast<int64_t>(seed % 6), 10 + static_cast<int>(seed), 0, seed);
    const FractionalRouting routing = solve(problem, seed % 3 == 0 ? 0.9 : 0.01);
    expect_valid(problem, routing, "seed " + std::to_string(seed));
    const double optimum = edge_flow_optimum(problem);
    EXPECT_NEAR(routing.congestion, optimum, 1e-7) << seed;
    EXPECT_NEAR(routing.lower, optimum, 1e-7) << seed;
  }
  for (const char* spec : {"2^k", "k^2+1", "cached(2^k)", "cached(k^2+1)", "cached(offsets(1,3,4))",
                           "window(3)", "fib", "random(2,3)|window(1)", "fenwick"}) {
    for (const int64_t n : {1, 2, 5, 8, 9}) {
      const CopyProblem problem = copy_problem(Pattern(spec, 2 * n));
      const FractionalRouting routing = solve(problem);
      expect_valid(problem, routing, spec);
      EXPECT_NEAR(routing.congestion, edge_flow_optimum(problem), 1e-7) << spec << " " << n;
    }
  }
}

TEST(RoutingLp, WholeRoutingsOfFewInputsAreNoBetter) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const CopyProblem problem = random_problem(1 + static_cast<int64_t>(seed % 3), 50, 0, seed);
    const FractionalRouting routing = solve(problem);
    const int64_t whole = best_of_all(problem);
    EXPECT_LE(routing.congestion, static_cast<double>(whole) + 1e-8) << seed;
    IntegralOptions options;
    options.lower = routing.lower;
    const IntegralRouting found = route_by_search(problem, routing.flows, options);
    EXPECT_EQ(found.congestion, whole) << seed;  // so few that the search finds the optimum
  }
}

TEST(RoutingWeights, BracketTheOptimum) {
  for (const char* spec : {"2^k", "k^2+1", "cached(2^k)", "cached(k^2+1)", "window(4)", "fib",
                           "random(4,1)|window(1)", "strided(5)|window(4)"}) {
    for (const int64_t n : {3, 20, 50, 65}) {
      const CopyProblem problem = copy_problem(Pattern(spec, 2 * n));
      const double optimum = solve(problem).congestion;
      for (const double gap : {0.2, 0.02, 0.005}) {
        WeightOptions options;
        options.gap = gap;
        options.max_rounds = 5000;
        const FractionalRouting routing = route_by_weights(problem, options);
        expect_valid(problem, routing, spec);
        EXPECT_LE(routing.lower, optimum * (1 + 1e-9)) << spec << " " << n;
        EXPECT_GE(routing.congestion, optimum * (1 - 1e-8)) << spec << " " << n;
        EXPECT_LE(routing.congestion - routing.lower, gap * routing.congestion) << spec << " " << n;
      }
    }
  }
}

TEST(RoutingWeights, AnyWeightsGiveALowerBound) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const CopyProblem problem = random_problem(6, 20, 0, seed);
    const double optimum = solve(problem).congestion;
    std::mt19937_64 random(seed);
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<double> weight(problem.tokens());
      for (double& w : weight) w = random() % 3 == 0 ? 0 : static_cast<double>(random() % 9 + 1);
      weight[random() % weight.size()] = 1;  // not all 0
      const double bound = dual_bound(problem, weight);
      EXPECT_LE(bound, optimum * (1 + 1e-9)) << seed;
      EXPECT_GE(bound, 0) << seed;
    }
  }
}

TEST(RoutingWeights, StopsWhenTold) {
  const CopyProblem problem = copy_problem(Pattern("k^2+1", 120));
  int64_t calls = 0;
  WeightOptions options;
  options.gap = 0;
  options.progress = [&](int64_t round, double lower, double congestion) {
    EXPECT_EQ(round, ++calls);
    EXPECT_LE(lower, congestion);
    return round < 3;
  };
  expect_valid(problem, route_by_weights(problem, options), "stopped");
  EXPECT_EQ(calls, 3);
}

TEST(RoutingIntegral, IsAWholeRouting) {
  for (const char* spec : {"2^k", "k^2+1", "cached(2^k)", "cached(k^2+1)", "window(4)", "dense",
                           "random(3,1)|window(1)", "fenwick", "blocks(16)|window(2)"}) {
    for (const int64_t n : {1, 2, 31, 65, 100}) {
      const CopyProblem problem = copy_problem(Pattern(spec, 2 * n));
      const FractionalRouting fractional = solve(problem);
      IntegralOptions options;
      options.lower = fractional.lower;
      options.max_rounds = 60;
      const IntegralRouting found = route_by_search(problem, fractional.flows, options);
      ASSERT_EQ(static_cast<int64_t>(found.paths.size()), n);
      for (int64_t c = 0; c < n; ++c) EXPECT_TRUE(is_path(problem, c, found.paths[c])) << spec;
      EXPECT_EQ(found.congestion, most_through_one(problem, found.paths)) << spec << " " << n;
      EXPECT_GE(static_cast<double>(found.congestion), fractional.lower * (1 - 1e-9)) << spec;
      // The same seed, the same routing.
      EXPECT_EQ(route_by_search(problem, fractional.flows, options).paths, found.paths) << spec;
    }
  }
}

}  // namespace
}  // namespace hopmix

// Fractional routings by multiplicative weights: any size, with a certified gap.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "hopmix/analysis/routing.h"

namespace hopmix {

struct FractionalRouting {
  std::vector<Flow> flows;  // [inputs]
  double congestion = 0;    // the most flow through one token
  double lower = 0;         // proven for every routing
};

struct WeightOptions {
  double lower = 0;   // proven so far
  double gap = 0.02;  // stop at congestion - lower <= gap * congestion
  int64_t max_rounds = 2000;
  // Called after each round with (round, lower, congestion); returning false stops.
  std::function<bool(int64_t, double, double)> progress;
};

/// Every pair must be reachable. Each token weighs exp(a * load). A round visits the inputs in turn
/// and moves flow from the paths in use to the lightest path, by exactly the amount that minimizes
/// the sum of weights along that exchange. It then prices the weights: the total weight of the
/// lightest paths over that of the tokens is a lower bound, by duality. `a` grows as the gap
/// closes. A round is O(reads * n).
FractionalRouting route_by_weights(const CopyProblem& problem, const WeightOptions& options);

/// sum over c of the lightest path's weight / sum of weights: a lower bound on the congestion of
/// every routing, for any weights >= 0 that are not all 0 (linear programming duality).
double dual_bound(const CopyProblem& problem, std::span<const double> weight);

}  // namespace hopmix

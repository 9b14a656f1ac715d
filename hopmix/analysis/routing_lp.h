// The fractional optimum of the copy routing by linear programming (Clp): exact, for some hundreds
// of inputs.
#pragma once

#include <functional>

#include "hopmix/analysis/routing_weights.h"

namespace hopmix {

struct LpOptions {
  int64_t max_rounds = 2000;
  // After each round: (round, lower, congestion); false stops.
  std::function<bool(int64_t, double, double)> progress;
};

/// Every pair must be reachable. Starts from `start`, a routing of the same problem (for example by
/// weights), and adds paths until none improves: column generation, each round a linear program on
/// the paths so far and a lightest path for each input under its dual weights. At the optimum lower
/// and congestion agree to 1e-9 of their size. The flows returned have the congestion stated.
FractionalRouting route_exactly(const CopyProblem& problem, FractionalRouting start,
                                const LpOptions& options = {});

}  // namespace hopmix

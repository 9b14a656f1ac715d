// The fractional optimum of the copy routing by linear programming (Clp): exact, for up to some
// hundred inputs.
#pragma once

#include <functional>

#include "hopmix/analysis/routing_weights.h"

namespace hopmix {

struct LpOptions {
  int64_t max_rounds = 2000;
  // Called after each round with (round, lower, congestion); returning false stops.
  std::function<bool(int64_t, double, double)> progress;
};

/// Every pair must be reachable. Starts from `start`, a routing of the same problem (for example
/// from routing_weights.h), and adds paths until none improves it: column generation, where each
/// round solves a linear program on the paths so far and finds a lightest path for each input under
/// its dual weights. At the optimum, lower and congestion agree to a relative 1e-9. The returned
/// flows have the stated congestion.
FractionalRouting route_exactly(const CopyProblem& problem, FractionalRouting start,
                                const LpOptions& options = {});

}  // namespace hopmix

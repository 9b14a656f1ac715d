// Searches for integral routings: one path per input.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "hopmix/analysis/routing.h"

namespace hopmix {

struct IntegralRouting {
  std::vector<Path> paths;  // [inputs]
  int64_t congestion = 0;   // the most paths through one token
};

struct IntegralOptions {
  double lower = 0;  // proven; the search ends when it reaches this bound rounded up
  int64_t max_rounds = 200;
  uint64_t seed = 0;
  // Called after each round with (round, congestion); returning false stops.
  std::function<bool(int64_t, int64_t)> progress;
};

/// Every pair must be reachable. Starts from the path with the largest share in each of `flows`.
/// Each round removes the paths one at a time, in random order, and reroutes each along the
/// lightest path under weights exp(a * load), where `a` rises from round to round and then starts
/// over. Keeps the best routing seen. A round is O(reads * n).
IntegralRouting route_by_search(const CopyProblem& problem, std::span<const Flow> flows,
                                const IntegralOptions& options);

}  // namespace hopmix

// Whole routings by search: one path for each input.
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
  double lower = 0;  // proven: the search ends when it reaches its next whole number
  int64_t max_rounds = 200;
  uint64_t seed = 0;
  // After each round: (round, congestion); false stops.
  std::function<bool(int64_t, int64_t)> progress;
};

/// Every pair must be reachable. Starts from the largest share of each of `flows`; then, in rounds,
/// takes up the paths in a random order and lays each one again along the lightest path under
/// weights exp(a * load), `a` rising from round to round and starting over. Keeps the best routing
/// met. A round is O(reads * n).
IntegralRouting route_by_search(const CopyProblem& problem, std::span<const Flow> flows,
                                const IntegralOptions& options);

}  // namespace hopmix

#include "hopmix/analysis/congestion.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "hopmix/analysis/routing_bounds.h"
#include "hopmix/analysis/routing_integral.h"
#include "hopmix/analysis/routing_lp.h"
#include "hopmix/analysis/routing_weights.h"
#include "hopmix/base/error.h"

namespace hopmix {
namespace {

// The gap of the routing by weights that the linear program starts from. It costs less than the
// rounds of column generation it saves.
constexpr double kStartGap = 0.01;
constexpr int64_t kStartRounds = 100;

constexpr double kExact = 1e-8;  // smaller gaps are rounding error

void check(const CongestionOptions& options) {
  const auto not_negative = [](const char* name, auto value) {
    if (value >= 0) return;  // false for NaN
    throw Error(std::string(name) + " is " + std::to_string(value) + "; it must not be negative");
  };
  not_negative("exact_inputs", options.exact_inputs);
  not_negative("max_rounds", options.max_rounds);
  not_negative("max_seconds", options.max_seconds);
  not_negative("integral_rounds", options.integral_rounds);
  if (!(options.gap >= 0 && options.gap < 1)) {
    throw Error("gap is " + std::to_string(options.gap) + "; it must be at least 0 and below 1");
  }
}

class Clock {
 public:
  explicit Clock(double seconds) : limit_(seconds) {}
  bool time_left() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count() <
           limit_;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double limit_;
};

FractionalRouting route_fractionally(const CopyProblem& problem, double lower,
                                     const CongestionOptions& options) {
  const bool exact = problem.inputs <= options.exact_inputs;
  const Clock clock(options.max_seconds);
  int64_t rounds = 0;
  bool stopped = false;
  const auto progress = [&](int64_t, double bound, double congestion) {
    const bool go_on =
        clock.time_left() &&
        (!options.progress || options.progress({++rounds, bound, congestion, false}));
    stopped = !go_on;
    return go_on;
  };
  WeightOptions weights{lower, options.gap, options.max_rounds, progress};
  if (exact) {
    weights.gap = kStartGap;
    weights.max_rounds = std::min(kStartRounds, options.max_rounds);
  }
  FractionalRouting routing = route_by_weights(problem, weights);
  if (!exact || stopped) return routing;
  return route_exactly(problem, std::move(routing), {options.max_rounds, progress});
}

int64_t route_whole(const CopyProblem& problem, const FractionalRouting& fractional,
                    const CongestionOptions& options) {
  const Clock clock(options.max_seconds);
  IntegralOptions search{fractional.lower, options.integral_rounds, options.seed, nullptr};
  search.progress = [&](int64_t round, int64_t congestion) {
    return clock.time_left() &&
           (!options.progress ||
            options.progress({round, fractional.lower, static_cast<double>(congestion), true}));
  };
  return route_by_search(problem, fractional.flows, search).congestion;
}

}  // namespace

Congestion congestion(const Pattern& pattern, const CongestionOptions& options) {
  check(options);
  const CopyProblem problem = copy_problem(pattern);
  Congestion result;
  result.inputs = problem.inputs;
  bool stopped = false;
  const DistanceBound distance = distance_bound(problem, [&] {
    stopped = options.progress && !options.progress({});
    return !stopped;
  });
  if (stopped) return result;
  result.unreachable = distance.unreachable;
  result.reachable = result.unreachable == 0;
  if (!result.reachable) return result;
  result.lower = distance.bound;
  result.cut = cut_bound(problem);
  result.proven = std::max(result.lower, result.cut);
  if (!options.fractional) return result;
  const FractionalRouting routing = route_fractionally(problem, result.proven, options);
  result.proven = routing.lower;
  result.fractional = routing.congestion;
  if (options.integral) {
    result.upper = route_whole(problem, routing, options);
    // An integral routing is also a fractional one.
    result.fractional = std::min(*result.fractional, static_cast<double>(*result.upper));
  }
  if (problem.inputs > 0) result.gap = 1 - result.proven / *result.fractional;
  if (std::abs(result.gap) < kExact) result.gap = 0;
  return result;
}

}  // namespace hopmix

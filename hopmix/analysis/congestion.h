// Congestion of the copy routing on a pattern (arXiv 2605.31367, section 4.1.3, propositions 4.7
// and 4.8). See docs/congestion.md for definitions and proofs.
//
// A pattern on N tokens has n = floor(N / 2) inputs 0 .. n-1 and outputs n .. 2n-1 (an odd last
// token is ignored). A routing has, for every c < n, a path along reads from output c + n back to
// input c. Its congestion is the largest number of paths through one token, endpoints included; the
// congestion of the pattern is the minimum over routings.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// The state of a search in progress.
struct CongestionProgress {
  int64_t round = 0;  // 0 while measuring distances, then 1, 2, ... in the fractional search and
                      // again in the integral one
  double lower = 0;   // the best proven lower bound on the fractional optimum
  double upper = 0;   // the congestion of the best fractional (then integral) routing
  bool integral = false;  // whether this is the integral search
};

struct CongestionOptions {
  bool fractional = true;      // search for a fractional routing; else compute only bounds
  int64_t exact_inputs = 128;  // linear programming up to this many inputs, else weights
  double gap = 0.02;           // multiplicative weights stop at this certified relative gap
  int64_t max_rounds = 2000;   // or after this many rounds
  // For each of the two searches. A finite limit makes the result depend on the machine; if it
  // stops the linear program, the gap is not 0.
  double max_seconds = std::numeric_limits<double>::infinity();
  bool integral = true;           // then search for an integral routing
  int64_t integral_rounds = 200;  // most rip-up-and-reroute passes over all paths
  uint64_t seed = 0;              // seed of the integral search
  // Called after each round and each distance; returning false stops. If it stops before the bounds
  // are known, the result is empty.
  std::function<bool(const CongestionProgress&)> progress;
};

/// lower, cut <= proven <= the true fractional optimum <= fractional <= upper, and proven <= C <=
/// upper, up to rounding (1e-8 of the value).
struct Congestion {
  int64_t inputs = 0;       // n
  int64_t unreachable = 0;  // pairs (c + n, c) with no path
  bool reachable = true;    // unreachable == 0; if false, nothing below is set
  double lower = 0;         // (d + 1) / 2, d the mean hops from output to input (proposition 4.7)
  double cut = 0;           // the cut bound
  double proven = 0;        // the largest proven lower bound: lower, cut, or from dual weights
  std::optional<double> fractional;  // congestion of the best fractional routing found
  double gap = 0;                    // (fractional - proven) / fractional, 0 if exact
  std::optional<int64_t> upper;      // congestion of the best integral routing found
};

/// Throws Error naming the option that is out of range (gap must be in [0, 1), counts and seconds
/// not negative). With no inputs (N < 2) everything is 0. A round takes O(reads * n) time; memory
/// is O(reads + n * tokens on the paths in use).
Congestion congestion(const Pattern& pattern, const CongestionOptions& options = {});

}  // namespace hopmix

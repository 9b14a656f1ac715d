// Congestion of the copy routing on a pattern (arXiv 2605.31367, section 4.1.3, propositions 4.7
// and 4.8). docs/congestion.md has the definitions and the proofs.
//
// A pattern on N tokens has n = floor(N / 2) inputs 0 .. n-1 and outputs n .. 2n-1 (an odd last
// token takes no part). A routing has, for every c < n, a path along reads from output c + n back
// to input c. Its congestion is the most paths through one token, endpoints included; the
// congestion of the pattern is the least over routings.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// What is known so far, for whoever watches or stops a long search.
struct CongestionProgress {
  int64_t round = 0;  // 0 while distances are measured, then 1, 2, ... of the fractional search,
                      // then of the integral one
  double lower = 0;   // the best proven lower bound on the fractional optimum
  double upper = 0;   // the congestion of the best fractional (then integral) routing
  bool integral = false;  // which of the two searches this is
};

struct CongestionOptions {
  bool fractional = true;      // search a fractional routing; else the bounds are all
  int64_t exact_inputs = 128;  // linear programming up to this many inputs, weights beyond
  double gap = 0.02;           // multiplicative weights stop at this certified relative gap
  int64_t max_rounds = 2000;   // and at this many rounds
  double max_seconds = std::numeric_limits<double>::infinity();  // of each of the two searches;
  // a finite limit makes the result depend on the machine. When it stops the linear program, the
  // gap is not 0.
  bool integral = true;           // search an integral routing, from the fractional one
  int64_t integral_rounds = 200;  // rip-up and reroute passes over all paths, at most
  uint64_t seed = 0;              // of the integral search
  // After each round, and at each distance; false stops. If that is before the bounds are known,
  // nothing is set.
  std::function<bool(const CongestionProgress&)> progress;
};

/// lower, cut <= proven <= the true fractional optimum <= fractional <= upper, and proven <= C <=
/// upper, up to rounding (1e-8 of the value).
struct Congestion {
  int64_t inputs = 0;       // n
  int64_t unreachable = 0;  // pairs (c + n, c) with no path
  bool reachable = true;    // unreachable == 0; if not, there is no routing: nothing below is set
  double lower = 0;         // (d + 1) / 2, d the mean hops from output to input (proposition 4.7)
  double cut = 0;           // the cut bound
  double proven = 0;        // the largest lower bound proven: lower, cut, or by dual weights
  std::optional<double> fractional;  // congestion of the best fractional routing found
  double gap = 0;                    // (fractional - proven) / fractional, 0 if exact
  std::optional<int64_t> upper;      // congestion of the best integral routing found
};

/// Throws Error naming the option when one is out of range (gap in [0, 1), counts and seconds not
/// negative). With no inputs (N < 2) everything is 0. A round takes O(reads * n) time; memory is
/// O(reads + n * tokens on the paths in use).
Congestion congestion(const Pattern& pattern, const CongestionOptions& options = {});

}  // namespace hopmix

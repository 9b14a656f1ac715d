// Searches for patterns with few hops or little congestion within limits on reads and cache.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hopmix/analysis/congestion.h"

namespace hopmix {

enum class Objective { kHops, kCongestion };

struct DesignProgress {
  int64_t cell = 0, cells = 0;  // pairs of limits done, and in total
  std::string best;             // the latest winner
};

struct DesignOptions {
  int64_t n = 1024;              // tokens, 2 to 8192
  std::optional<int64_t> reads;  // most reads per token, at least 1
  std::optional<int64_t> cache;  // most tokens kept, at least 1
  Objective minimize = Objective::kHops;
  /// Lattices scored for each pair of limits and each family. Offset sets are far cheaper:
  /// kOffsetsFactor times as many are scored.
  int64_t evaluations = 500;
  uint64_t seed = 0;
  bool ladder = true;  // also search smaller limits, for the front; else only the limits given
  std::function<bool(const DesignProgress&)> progress;  // called often; false stops the search
};
inline constexpr int64_t kOffsetsFactor = 20;

/// A pattern with its costs and its objective on n tokens.
struct DesignPoint {
  std::string spec;
  bool reference = false;        // a known pattern from the papers, not found by the search
  bool within = true;            // within the limits asked for
  bool front = false;            // Pareto-optimal in reads, cache and objective
  int64_t reads = 0, cache = 0;  // the largest row; the peak
  std::optional<double> mean_hops;
  std::optional<int64_t> diameter;
  std::optional<Congestion> congestion;  // if it is the objective
  /// The index of the best found point with no more reads and cache and a strictly smaller
  /// objective; for congestion, a routing below what is proven to be a bound for this one.
  std::optional<size_t> beaten_by;
};

struct Design {
  std::vector<DesignPoint> points;  // reads ascending, then cache, then the objective
  int64_t evaluations = 0;          // patterns scored
  bool stopped = false;             // stopped early: the points are the best so far
};

/// The known patterns that a design is compared with: window(1) (linear recurrence), dense
/// (attention), 2^k, k^2+1 and their cached variants (arXiv 2605.31367), fenwick (log-linear
/// attention).
const std::vector<std::string>& reference_patterns();

/// Simulated annealing over three families, offsets(F), cached(offsets(F)) and offsets(F) |
/// cached(offsets(G)), once for each pair of limits: those given, smaller ones (reads halved, cache
/// quartered), and the reads and cache of each reference pattern within them. Searches at most 64
/// reads. For congestion, the annealing follows max(lower, cut) (congestion.h), then hops; the
/// congestion itself is computed for the results. The same options give the same design unless
/// `progress` stops it. Throws Error naming the option that is out of range.
Design design(const DesignOptions& options);

}  // namespace hopmix

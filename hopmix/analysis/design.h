// Searches patterns for few hops or little congestion within limits on reads and cache.
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
  int64_t cell = 0, cells = 0;  // limits searched, of those to search
  std::string best;             // the last winner
};

struct DesignOptions {
  int64_t n = 1024;              // tokens, 2 to 8192
  std::optional<int64_t> reads;  // of one token, at most; at least 1
  std::optional<int64_t> cache;  // tokens kept, at most; at least 1
  Objective minimize = Objective::kHops;
  /// For each pair of limits and each family: lattices scored; offset sets, which are far cheaper,
  /// are scored kOffsetsFactor times as many.
  int64_t evaluations = 500;
  uint64_t seed = 0;
  bool ladder = true;  // search smaller limits too, for the front; else the limits themselves
  std::function<bool(const DesignProgress&)> progress;  // often; false stops the search
};
inline constexpr int64_t kOffsetsFactor = 20;

/// A pattern and what it costs and carries on n tokens.
struct DesignPoint {
  std::string spec;
  bool reference = false;  // a pattern of the papers, not found by the search
  bool within = true;      // within the limits asked for
  bool front = false;      // no other point has as few reads, cache and objective, and one fewer
  int64_t reads = 0, cache = 0;  // the largest row and the peak
  std::optional<double> mean_hops;
  std::optional<int64_t> diameter;
  std::optional<Congestion> congestion;  // when it is the objective
  /// The index of the best found point with no more reads and cache and a strictly smaller
  /// objective; for congestion, a routing below what is proven to bound this one.
  std::optional<size_t> beaten_by;
};

struct Design {
  std::vector<DesignPoint> points;  // reads ascending, then cache, then the objective
  int64_t evaluations = 0;          // patterns scored
  bool stopped = false;             // before the end: the points are the best so far
};

/// The patterns of the papers that a design is placed beside: window(1) (linear recurrence), dense
/// (attention), 2^k, k^2+1 and their cached variants (arXiv 2605.31367), fenwick (log-linear
/// attention).
const std::vector<std::string>& reference_patterns();

/// Simulated annealing over three families, offsets(F), cached(offsets(F)) and offsets(F) |
/// cached(offsets(G)), once for each pair of limits: those asked for, smaller ones (reads halved,
/// cache quartered), and the reads and cache of each reference pattern within them. More than 64
/// reads are not searched. For congestion the annealing follows max(lower, cut) (congestion.h),
/// then hops; the congestion itself is computed of what it finds. The same options give the same
/// design unless `progress` stops it. Throws Error naming the option out of range.
Design design(const DesignOptions& options);

}  // namespace hopmix

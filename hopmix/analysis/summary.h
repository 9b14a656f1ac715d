// Summarizes one pattern: its costs, how they grow, and what it carries.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hopmix/analysis/congestion.h"
#include "hopmix/analysis/growth.h"

namespace hopmix {

/// Hops of patterns without offsets are exact up to this many tokens and sampled beyond.
inline constexpr int64_t kExactHops = 16384;
/// Congestion is computed up to this many tokens; beyond, only its bounds.
inline constexpr int64_t kRoutedTokens = 4096;

struct SummaryOptions {
  bool congestion = true;
  CongestionOptions routing;                         // `progress` is ignored
  int64_t sources = 64;                              // for sampled hops, at least 2
  uint64_t seed = 0;                                 // for sampled hops
  std::function<bool(const std::string&)> progress;  // gets the current stage; false stops
};

struct Summary {
  std::string spec;
  int64_t n = 0;
  int64_t reads_total = 0, reads_max = 0, cache_peak = 0;
  std::optional<Growth> reads_growth, cache_growth;  // of reads_total / n and of cache_peak
  bool connected = true;                             // whether every pair j < i examined has a path
  std::optional<int64_t> diameter;    // none unless connected; a lower bound if sampled
  std::optional<double> mean_hops;    // none unless connected
  int64_t sources = 0;                // for sampled hops; 0 if exact
  double half_width = 0;              // 95% confidence interval of mean_hops; 0 if exact
  std::optional<Growth> hops_growth;  // of mean_hops; none if sampled
  std::optional<Congestion> congestion;
};

/// Fits the growth of reads and cache over lengths n / 4, n / 2, n, 2 n, ..., 8 n, as far as the
/// spec allows (a dag ends where its file does) and its reads do not exceed 2^28; that of hops over
/// n / 16, ..., n. Lengths start at 16. Throws Error as Pattern and CongestionOptions do.
Summary summarize(const std::string& spec, int64_t n, const SummaryOptions& options = {});

}  // namespace hopmix

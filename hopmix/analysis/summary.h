// Everything that is known of one pattern: what it costs, how that grows, what it carries.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hopmix/analysis/congestion.h"
#include "hopmix/analysis/growth.h"

namespace hopmix {

/// Hops of a pattern without offsets are exact up to this many tokens, sampled beyond.
inline constexpr int64_t kExactHops = 16384;
/// Congestion is computed up to this many tokens, bounded beyond.
inline constexpr int64_t kRoutedTokens = 4096;

struct SummaryOptions {
  bool congestion = true;
  CongestionOptions routing;                         // its `progress` is not used
  int64_t sources = 64;                              // of sampled hops, at least 2
  uint64_t seed = 0;                                 // of sampled hops
  std::function<bool(const std::string&)> progress;  // what is under way; false stops
};

struct Summary {
  std::string spec;
  int64_t n = 0;
  int64_t reads_total = 0, reads_max = 0, cache_peak = 0;
  std::optional<Growth> reads_growth, cache_growth;  // of reads_total / n and of cache_peak
  bool connected = true;              // whether every pair j < i has a path, as far as was looked
  std::optional<int64_t> diameter;    // none unless connected; the largest seen if sampled
  std::optional<double> mean_hops;    // none unless connected
  int64_t sources = 0;                // of sampled hops; 0 if exact
  double half_width = 0;              // of the 95% confidence interval of mean_hops; 0 if exact
  std::optional<Growth> hops_growth;  // of mean_hops; none where sampled
  std::optional<Congestion> congestion;
};

/// Growth of reads and cache is fitted over lengths n / 4, n / 2, n, 2 n, ..., 8 n, as far as the
/// spec allows (a dag ends where its file does) and its reads are no more than 2^28; that of hops
/// over n / 16, ..., n. Lengths start at 16. Throws Error as Pattern and CongestionOptions do.
Summary summarize(const std::string& spec, int64_t n, const SummaryOptions& options = {});

}  // namespace hopmix

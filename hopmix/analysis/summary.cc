#include "hopmix/analysis/summary.h"

#include <algorithm>
#include <cstdio>

#include "hopmix/analysis/cost.h"
#include "hopmix/analysis/hops.h"
#include "hopmix/analysis/sampled_hops.h"
#include "hopmix/base/error.h"

namespace hopmix {
namespace {

constexpr int64_t kShortest = 16;
constexpr int64_t kMostReads = int64_t{1} << 28;  // skip longer lengths in growth fits
constexpr int64_t kMostTokens = (int64_t{1} << 31) - 1;

// n / parts, ..., n / 2, without those below kShortest.
std::vector<int64_t> shorter(int64_t n, int64_t parts) {
  std::vector<int64_t> lengths;
  for (int64_t part = parts; part > 1; part /= 2) {
    if (n / part >= kShortest) lengths.push_back(n / part);
  }
  return lengths;
}

struct CostSamples {
  std::vector<Sample> reads, cache;
  void add(int64_t n, const Cost& spent) {
    reads.push_back({n, static_cast<double>(spent.reads_total) / static_cast<double>(n)});
    cache.push_back({n, static_cast<double>(spent.cache_peak)});
  }
};

void fit_costs(Summary& summary, const Cost& spent) {
  const int64_t n = summary.n;
  if (n < kShortest) return;
  CostSamples samples;
  for (const int64_t length : shorter(n, 4)) {
    samples.add(length, cost(Pattern(summary.spec, length)));
  }
  samples.add(n, spent);
  int64_t reads = spent.reads_total;
  // Doubling the tokens at most quadruples the reads of these patterns.
  for (int64_t length = 2 * n; length <= std::min(8 * n, kMostTokens) && 4 * reads <= kMostReads;
       length *= 2) {
    try {
      const Cost longer = cost(Pattern(summary.spec, length));
      samples.add(length, longer);
      reads = longer.reads_total;
    } catch (const Error&) {
      break;  // a dag with fewer tokens, or an expression that ends
    }
  }
  summary.reads_growth = fit_growth(samples.reads);
  summary.cache_growth = fit_growth(samples.cache);
}

void measure_hops(Summary& summary, const Pattern& pattern) {
  const Hops exact = hops(pattern);
  summary.connected = exact.unreachable == 0;
  summary.diameter = exact.diameter;
  summary.mean_hops = exact.mean;
  if (!exact.mean) return;
  std::vector<Sample> samples;
  for (const int64_t length : shorter(pattern.size(), 16)) {
    if (const auto mean = hops(Pattern(summary.spec, length)).mean) {
      samples.push_back({length, *mean});
    }
  }
  if (pattern.size() >= kShortest) samples.push_back({pattern.size(), *exact.mean});
  summary.hops_growth = fit_growth(samples);
}

void sample_hops(Summary& summary, const Pattern& pattern, const SummaryOptions& options) {
  const SampledHops sampled =
      sampled_hops(pattern, options.sources, options.seed, [&](int64_t done) {
        return !options.progress || options.progress("hops from token " + std::to_string(done) +
                                                     " of " + std::to_string(options.sources));
      });
  summary.sources = sampled.sources;
  summary.connected = sampled.unreachable == 0;
  if (!summary.connected) return;
  summary.diameter = sampled.diameter_at_least;
  summary.mean_hops = sampled.mean;
  summary.half_width = sampled.half_width;
}

}  // namespace

Summary summarize(const std::string& spec, int64_t n, const SummaryOptions& options) {
  const auto go_on = [&](const std::string& what) {
    return !options.progress || options.progress(what);
  };
  const Pattern pattern(spec, n);
  Summary summary;
  summary.spec = pattern.spec();
  summary.n = n;
  if (!go_on("reads and cache")) return summary;
  const Cost spent = cost(pattern);
  summary.reads_total = spent.reads_total;
  summary.reads_max = spent.reads_max;
  summary.cache_peak = spent.cache_peak;
  fit_costs(summary, spent);

  if (!go_on("hops")) return summary;
  if (!pattern.offsets().empty() || n <= kExactHops) {
    measure_hops(summary, pattern);
  } else {
    sample_hops(summary, pattern, options);
  }
  if (!options.congestion || !go_on("congestion")) return summary;
  CongestionOptions routing = options.routing;
  routing.fractional = n <= kRoutedTokens;
  routing.progress = [&](const CongestionProgress& progress) {
    if (progress.round == 0) return go_on("congestion, distances");
    char text[120];
    std::snprintf(text, sizeof text, "congestion, %s routing, round %lld, %.3f .. %.3f",
                  progress.integral ? "integral" : "fractional",
                  static_cast<long long>(progress.round), progress.lower, progress.upper);
    return go_on(text);
  };
  summary.congestion = congestion(pattern, routing);
  return summary;
}

}  // namespace hopmix

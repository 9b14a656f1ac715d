#include "hopmix/analysis/sampled_hops.h"

#include <algorithm>
#include <cmath>

#include "hopmix/analysis/random.h"
#include "hopmix/base/error.h"

namespace hopmix {
namespace {

// The 97.5% quantile of Student's t, by its expansion in 1 / freedom (Abramowitz and Stegun,
// 26.7.5), accurate to 0.01 from 4 degrees of freedom on.
double student_t(int64_t freedom) {
  if (freedom == 1) return 12.706;
  if (freedom == 2) return 4.303;
  if (freedom == 3) return 3.182;
  constexpr double z = 1.959964;
  const double v = static_cast<double>(freedom);
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * v * v * v);
}

// Draws token i = 1 .. n-1 with probability proportional to i: the later token of a uniform pair.
int64_t draw_source(std::mt19937_64& random, int64_t n) {
  const int64_t a = below(random, n);
  int64_t b = below(random, n - 1);
  if (b >= a) ++b;
  return std::max(a, b);
}

}  // namespace

HopSearch::HopSearch(const Pattern& pattern) : pattern_(pattern) {}

const std::vector<int32_t>& HopSearch::from(int64_t i) {
  if (i < 0 || i >= pattern_.size()) {
    throw Error("token " + std::to_string(i) + " must be at least 0 and below " +
                std::to_string(pattern_.size()));
  }
  distance_.assign(i + 1, -1);
  distance_[i] = 0;
  frontier_.assign(1, static_cast<int32_t>(i));
  int64_t left = i;
  for (int32_t h = 1; left > 0 && !frontier_.empty(); ++h) {
    next_.clear();
    for (const int32_t at : frontier_) {
      pattern_.row(at, cols_);
      for (const int32_t j : cols_) {
        if (distance_[j] >= 0) continue;
        distance_[j] = h;
        next_.push_back(j);
      }
    }
    left -= static_cast<int64_t>(next_.size());
    frontier_.swap(next_);
  }
  return distance_;
}

SampledHops sampled_hops(const Pattern& pattern, int64_t sources, uint64_t seed,
                         const std::function<bool(int64_t)>& progress) {
  const int64_t n = pattern.size();
  if (n < 2) throw Error("n " + std::to_string(n) + " must be at least 2 to sample pairs");
  if (sources < 2) throw Error("sources " + std::to_string(sources) + " must be at least 2");
  std::mt19937_64 random(seed);
  HopSearch search(pattern);
  SampledHops result;
  double average = 0, squares = 0, unreached = 0;
  int64_t counted = 0;  // sources from which some token is reached
  for (int64_t s = 0; s < sources; ++s) {
    const int64_t i = draw_source(random, n);
    int64_t reached = 0, total = 0;
    const std::vector<int32_t>& distance = search.from(i);
    for (int64_t j = 0; j < i; ++j) {
      if (distance[j] < 0) continue;
      ++reached;
      total += distance[j];
      result.diameter_at_least = std::max<int64_t>(result.diameter_at_least, distance[j]);
    }
    unreached += static_cast<double>(i - reached) / static_cast<double>(i);
    if (reached > 0) {
      const double mean = static_cast<double>(total) / static_cast<double>(reached);
      ++counted;
      // Welford's update: no difference of large sums.
      const double before = mean - average;
      average += before / static_cast<double>(counted);
      squares += before * (mean - average);
    }
    ++result.sources;
    if (progress && result.sources >= 2 && !progress(result.sources)) break;
  }
  result.unreachable = unreached / static_cast<double>(result.sources);
  result.mean = average;
  if (counted >= 2) {
    const double variance = squares / static_cast<double>(counted - 1);
    result.half_width = student_t(counted - 1) * std::sqrt(variance / static_cast<double>(counted));
  }
  return result;
}

}  // namespace hopmix

// For tests only.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace hopmix::tasks {

/// Pearson's statistic of `counts` against `weights` in proportion, within five standard deviations
/// of its mean.
inline void expect_shares(const std::vector<double>& counts, const std::vector<double>& weights) {
  ASSERT_EQ(counts.size(), weights.size());
  double total = 0, weight = 0, sum = 0;
  for (const double count : counts) total += count;
  for (const double w : weights) weight += w;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * weights[i] / weight;
    ASSERT_GE(expected, 5) << "too few samples";
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  const double freedom = static_cast<double>(counts.size()) - 1;
  EXPECT_LT(sum, freedom + 5 * std::sqrt(2 * freedom));
}

inline void expect_uniform(const std::vector<double>& counts) {
  expect_shares(counts, std::vector<double>(counts.size(), 1.0));
}

}  // namespace hopmix::tasks

// Hops: d(i, j) is the fewest reads that lead from token i back to token j < i (arXiv 2605.31367,
// proposition 4.4).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// Exact hops over all pairs j < i.
struct Hops {
  // pairs[h] pairs are h hops apart; pairs[0] = 0; ends at the largest h.
  std::vector<int64_t> pairs;
  int64_t unreachable = 0;          // pairs with no path
  std::optional<int64_t> diameter;  // the largest d; 0 without pairs, none if a pair is unreachable
  std::optional<double> mean;       // the mean d; 0 without pairs, none if a pair is unreachable
};

/// An f pattern takes O(n * offsets) time and O(n) memory. Any other pattern takes one
/// breadth-first search over its graph per 64 targets, one per bit of a word: at most O(reads * n /
/// 64) times the differences in distance between neighbouring targets, and O(reads + n) memory.
/// 16,384 tokens of cached(2^k) take a fraction of a second; a million take hours.
Hops hops(const Pattern& pattern);
Hops hops(const Csr& pattern);

/// d(i, i - s) for s = 0 .. n - 1 of an f pattern, which depends only on s: the fewest offsets,
/// with repetition, that sum to s; -1 if none do. `offsets` ascend from at least 1. O(n * offsets).
std::vector<int32_t> hops_by_distance(const std::vector<int64_t>& offsets, int64_t n);

}  // namespace hopmix

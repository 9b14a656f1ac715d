// The Fenwick partition of a prefix (Guo et al. 2025, arXiv 2506.04761, section 3.1), positions
// counted from 0. Token i reads itself at level 0 and the past in buckets, one for each set bit of
// i: for bit b, level b + 1 is the 2^b tokens starting at i with the bits up to b cleared. So the
// level of a pair j <= i is the number of bits of i xor j.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hopmix::kernels {

/// The number of levels of a text of this length: ceil(log2(tokens)) + 1, or 0 without tokens.
constexpr int64_t fenwick_levels(int64_t tokens) {
  return tokens < 1 ? 0 : std::bit_width(static_cast<uint64_t>(tokens - 1)) + 1;
}

/// The bit whose bucket token (or chunk) `i` completes. With the buckets of the lower bits, which
/// are all set, it becomes one bucket of 2^bit.
constexpr int64_t fenwick_completes(int64_t i) { return std::countr_one(static_cast<uint64_t>(i)); }

/// Calls body(bit) for the set bits of `i`, the buckets before it, from the nearest to the
/// farthest.
template <typename Body>
void for_buckets(int64_t i, const Body& body) {
  for (auto rest = static_cast<uint64_t>(i); rest != 0; rest &= rest - 1) {
    body(static_cast<int64_t>(std::countr_zero(rest)));
  }
}

/// Calls body(level, begin, end) for the runs of queries i > j, i < n, that read token j at the
/// same level.
template <typename Body>
void for_readers(int64_t j, int64_t n, const Body& body) {
  for (int64_t bit = 0; (int64_t{1} << bit) < n; ++bit) {
    if ((j >> bit & 1) != 0) continue;
    const int64_t begin = ((j >> bit) + 1) << bit;
    if (begin < n) body(bit + 1, begin, std::min(n, begin + (int64_t{1} << bit)));
  }
}

}  // namespace hopmix::kernels

// Random integers that are the same on every machine, unlike the standard distributions. Private to
// this folder.
#pragma once

#include <cstdint>
#include <random>

namespace hopmix {

/// Uniform over 0 .. bound - 1, up to a bias of bound / 2^64. `bound` is at least 1.
inline int64_t below(std::mt19937_64& random, int64_t bound) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
}

/// Uniform over [0, 1).
inline double unit(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

}  // namespace hopmix

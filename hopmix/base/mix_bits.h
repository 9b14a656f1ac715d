// The mixing step of SplitMix64.
#pragma once

#include <cstdint>

namespace hopmix {

/// A bijection of 64-bit words in which every input bit reaches every output bit (Steele, Lea and
/// Flood 2014, "Fast splittable pseudorandom number generators").
inline uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// SplitMix64's step, the golden ratio as a 64-bit fraction.
inline constexpr uint64_t kGoldenStep = 0x9e3779b97f4a7c15u;

}  // namespace hopmix

// A small random generator with the same numbers on every platform. The standard specifies the
// output of its engines, but not of its distributions and shuffle.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "hopmix/base/mix_bits.h"

namespace hopmix::tasks {

/// SplitMix64: advances `state` and returns the next number.
inline uint64_t split_mix(uint64_t& state) { return mix_bits(state += kGoldenStep); }

/// xoshiro256** (Blackman and Vigna 2021, "Scrambled linear pseudorandom number generators").
class Rng {
 public:
  /// Stream number `stream` of `seed`. Streams of one seed, and the same stream of two seeds, are
  /// unrelated.
  explicit Rng(uint64_t seed, uint64_t stream = 0) {
    uint64_t state =
        split_mix(seed) + stream;  // hash first, so that seed + 1 is not the next stream
    state = split_mix(state);
    for (uint64_t& word : state_) word = split_mix(state);
  }

  explicit Rng(const std::array<uint64_t, 4>& state) : state_(state) {}

  uint64_t next() {
    const uint64_t result = rotate(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  /// Uniform over 0..n-1, n >= 1, without bias: numbers below 2^64 mod n are redrawn.
  int64_t below(int64_t n) {
    const uint64_t range = static_cast<uint64_t>(n);
    const uint64_t biased = (0 - range) % range;
    uint64_t drawn = next();
    while (drawn < biased) drawn = next();
    return static_cast<int64_t>(drawn % range);
  }

  /// Uniform over the multiples of 2^-53 in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// Every order equally likely (Fisher and Yates).
  void shuffle(std::vector<int64_t>& items) {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<std::size_t>(below(static_cast<int64_t>(i)))]);
    }
  }

 private:
  static uint64_t rotate(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

  std::array<uint64_t, 4> state_;
};

}  // namespace hopmix::tasks

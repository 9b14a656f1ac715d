// The storage types of the kernels and the type in which each is summed.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace hopmix::kernels {

/// The upper half of a float: 8 exponent and 7 fraction bits. For storage only; arithmetic is in
/// float.
struct Bfloat16 {
  uint16_t bits;

  Bfloat16() = default;

  /// Rounds to nearest, ties to even. NaN stays NaN (quiet, same sign); overflow gives infinity.
  explicit Bfloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    if (value != value) {
      bits = static_cast<uint16_t>((word >> 16) | 0x40);
    } else {
      bits = static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
    }
  }

  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

template <typename T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<Bfloat16> {
  using type = float;
};

/// float for Bfloat16 and float, double for double.
template <typename T>
using Accumulator = typename AccumulatorOf<T>::type;

/// Whether an output stored as T has lost digits that its backward needs, and is therefore
/// recomputed.
template <typename T>
inline constexpr bool kRoundsOutput = !std::is_same_v<T, Accumulator<T>>;

}  // namespace hopmix::kernels

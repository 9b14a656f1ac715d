#include "hopmix/kernels/base/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hopmix::kernels {
namespace {

float round_trip(float x) { return static_cast<float>(Bfloat16(x)); }

TEST(Bfloat16, KeepsEveryValueItHas) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Bfloat16 x;
    x.bits = static_cast<uint16_t>(bits);
    const float value = static_cast<float>(x);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(round_trip(value))) << bits;
    } else {
      EXPECT_EQ(Bfloat16(value).bits, bits);
    }
  }
}

TEST(Bfloat16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(round_trip(1 + 0x1p-8f), 1.0f);         // a tie, down to even
  EXPECT_EQ(round_trip(1 + 0x3p-8f), 1 + 0x1p-6f);  // a tie, up to even
  EXPECT_EQ(round_trip(1 + 0x1p-8f + 0x1p-20f), 1 + 0x1p-7f);
  EXPECT_EQ(round_trip(-1 - 0x3p-8f), -1 - 0x1p-6f);
  EXPECT_EQ(round_trip(std::numeric_limits<float>::max()), std::numeric_limits<float>::infinity());
  EXPECT_EQ(round_trip(0x1p-133f), 0x1p-133f);  // the smallest subnormal
  EXPECT_TRUE(std::signbit(round_trip(-0.0f)));
}

TEST(Bfloat16, NanWhoseUpperHalfIsAllExponentStaysNan) {
  EXPECT_TRUE(std::isnan(round_trip(std::bit_cast<float>(0x7f800001u))));
  EXPECT_TRUE(std::isnan(round_trip(std::bit_cast<float>(0xffffffffu))));
}

}  // namespace
}  // namespace hopmix::kernels

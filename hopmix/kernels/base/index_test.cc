#include "hopmix/kernels/base/index.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {
namespace {

TEST(Index, HeadOffsetPassesTwoToThe31) {
  // [2^18 tokens, 64 heads, 128]: exactly 2^31 entries.
  EXPECT_EQ(head_offset((int64_t{1} << 18) - 1, 64, 63, 128), (int64_t{1} << 31) - 128);
  EXPECT_EQ(head_offset(int64_t{1} << 18, 64, 0, 128), int64_t{1} << 31);
  EXPECT_EQ(head_offset(int64_t{1} << 30, 64, 63, 128), (int64_t{1} << 43) + 63 * 128);
  static_assert(head_offset(int64_t{1} << 18, 64, 1, 128) == 2147483776);
}

TEST(Index, PlaneOffsetPassesTwoToThe31) {
  // k^2+1 at a million tokens has about 10^9 reads a head.
  EXPECT_EQ(plane_offset(1, 8, 3, 1'000'000'000, 999'999'999), 11'999'999'999);
  EXPECT_EQ(plane_offset(0, 1, 2, int64_t{1} << 30, 0), int64_t{1} << 31);
}

TEST(Index, FirstTokenPassesTwoToThe31) {
  const Sequences all = Sequences::batched(3, int64_t{1} << 31);
  EXPECT_EQ(all.first_token(all.list[2]), int64_t{1} << 32);
}

TEST(Index, SequencesCoverEveryTokenOnce) {
  const std::vector<int64_t> bounds = {0, 0, 3, 3, 7};
  const Sequences packed = Sequences::packed(bounds);
  ASSERT_EQ(packed.count(), 4);
  EXPECT_EQ(packed.time, 7);
  EXPECT_EQ(packed.longest(), 4);
  EXPECT_EQ(packed.list[3].start, 3);
  EXPECT_EQ(packed.list[2].length, 0);
  EXPECT_EQ(Sequences::batched(0, 5).longest(), 0);
}

}  // namespace
}  // namespace hopmix::kernels

#include "hopmix/base/memory_size.h"

#include <gtest/gtest.h>

#include <limits>

namespace hopmix {
namespace {

TEST(MemorySize, IsThatOfAMachine) {
  EXPECT_GT(memory_size(), int64_t{1} << 24);
  EXPECT_LT(memory_size(), int64_t{1} << 50);
}

TEST(MemorySize, ProductsDoNotWrap) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(saturating_product(3, 5), 15);
  EXPECT_EQ(saturating_product(kMost, 0), 0);
  EXPECT_EQ(saturating_product(kMost, 2), kMost);
  EXPECT_EQ(saturating_product(int64_t{1} << 32, int64_t{1} << 32), kMost);
}

TEST(MemorySize, IsShown) {
  EXPECT_EQ(format_bytes(1023), "1023 bytes");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 40), "3.0 TiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
}

}  // namespace
}  // namespace hopmix

#include "hopmix/analysis/capacity.h"

#include <gtest/gtest.h>

#include "hopmix/base/error.h"

namespace hopmix {
namespace {

TEST(Capacity, ByHand) {
  EXPECT_EQ(topk_capacity(16, 64, 4, 32), 37888);  // 16 * 64 * 37
  EXPECT_EQ(topk_capacity(1, 1, 0, 0), 1);
  EXPECT_EQ(topk_capacity(32, 256, 3, 0), 32768);             // 8192 * 4
  EXPECT_EQ(multihop_capacity(16, 64, {8, 1, 1, 1}), 32768);  // 1024 * 4 * 8
  EXPECT_EQ(multihop_capacity(16, 64, {11, 1, 1}), 33792);    // 1024 * 3 * 11
  EXPECT_EQ(multihop_capacity(16, 64, {16, 1}), 32768);
  EXPECT_EQ(multihop_capacity(16, 64, {32}), 32768);
  EXPECT_EQ(multihop_capacity(2, 3, {2, 3, 5}), 540);  // 6 * 3 * 30
}

TEST(Capacity, NeededForAComposition) {
  EXPECT_EQ(capacity_needed(100, 2, 1).value(), 10);  // square root
  EXPECT_EQ(capacity_needed(100, 5, 1).value(), 10);  // no easier
  EXPECT_NEAR(capacity_needed(1000, 3, 2).value(), 10, 1e-12);
  EXPECT_NEAR(capacity_needed(100000, 5, 4).value(), 10, 1e-12);
  EXPECT_FALSE(capacity_needed(1e9, 1, 1));
  EXPECT_FALSE(capacity_needed(1e9, 4, 4));
}

TEST(Capacity, TheLargestDomainIsTheInverse) {
  EXPECT_EQ(largest_domain(10, 2, 1).value(), 100);
  EXPECT_EQ(largest_domain(37888, 2, 1).value(), 1435500544);
  EXPECT_EQ(largest_domain(10, 3, 2).value(), 1000);
  EXPECT_FALSE(largest_domain(10, 2, 2));
  for (int64_t hops = 1; hops <= 4; ++hops) {
    for (double capacity = 2; capacity < 40; ++capacity) {
      const double n = largest_domain(capacity, hops + 1, hops).value();
      EXPECT_NEAR(capacity_needed(n, hops + 1, hops).value(), capacity, 1e-9);
      EXPECT_GT(capacity_needed(1.01 * n + 1, hops + 1, hops).value(), capacity);
    }
  }
}

TEST(Capacity, BadInputIsNamed) {
  EXPECT_THROW(topk_capacity(0, 1, 1, 1), Error);
  EXPECT_THROW(topk_capacity(1, 0, 1, 1), Error);
  EXPECT_THROW(topk_capacity(1, 1, -1, 1), Error);
  EXPECT_THROW(topk_capacity(1, 1, 1, -1), Error);
  EXPECT_THROW(multihop_capacity(1, 1, {}), Error);
  EXPECT_THROW(multihop_capacity(1, 1, {4, 0}), Error);
  EXPECT_THROW(capacity_needed(0, 1, 1), Error);
  EXPECT_THROW(largest_domain(0, 2, 1), Error);
  try {
    multihop_capacity(1, 1, {4, 0});
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "widths: 0 must be at least 1");
  }
}

}  // namespace
}  // namespace hopmix

#include "hopmix/kernels/base/load_bandwidth.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace hopmix::kernels {
namespace {

// Whole numbers, so that every order of summation gives the same bits.
std::vector<float> whole_numbers(int64_t count) {
  std::vector<float> data(count);
  for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(i * 7919 % 31 - 15);
  return data;
}

TEST(LoadBandwidth, ReadsEveryNumberOnce) {
  for (const int64_t count : {0, 1, 3, 15, 16, 63, 64, 65, 255, 256, 1000, 4096}) {
    const std::vector<float> data = whole_numbers(count);
    EXPECT_EQ(sum_in_order(data.data(), count), std::accumulate(data.begin(), data.end(), 0.0F))
        << count;
  }
}

TEST(LoadBandwidth, ReadsTheRowsThatAreListed) {
  for (const int64_t width : {128, 256, 640}) {
    const std::vector<float> data = whole_numbers(10 * width);
    const std::vector<int32_t> order = {9, 0, 3, 3, 7};
    float expected = 0;
    for (const int32_t row : order) {
      for (int64_t c = 0; c < width; ++c) expected += data[row * width + c];
    }
    EXPECT_EQ(sum_of_rows(data.data(), width, order.data(), 5), expected) << width;
    EXPECT_EQ(sum_of_rows(data.data(), width, order.data(), 0), 0);
  }
}

TEST(LoadBandwidth, ScalesEveryNumberOnce) {
  for (const int64_t count : {0, 1, 3, 15, 16, 63, 64, 65, 255, 256, 1000, 4096}) {
    const std::vector<float> before = whole_numbers(count);
    std::vector<float> data = before;
    scale_in_order(data.data(), count, -2);
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(data[i], -2 * before[i]) << count;
  }
}

TEST(LoadBandwidth, NamesItsTarget) { EXPECT_NE(simd_target(), ""); }

}  // namespace
}  // namespace hopmix::kernels

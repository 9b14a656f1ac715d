#include "hopmix/kernels/maps/rope.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

template <typename T>
class RopeTest : public ::testing::Test {};
TYPED_TEST_SUITE(RopeTest, StorageTypes);

TYPED_TEST(RopeTest, TurnsPairsAndBack) {
  using T = TypeParam;
  for (const auto& shape :
       {std::array<int64_t, 4>{1, 1, 1, 1}, {2, 65, 3, 10}, {1, 100, 2, 32}, {2, 0, 1, 3}}) {
    const int64_t batch = shape[0], time = shape[1], heads = shape[2], pairs = shape[3];
    for (const bool each_row : {false, true}) {
      const int64_t size = batch * time * heads * 2 * pairs;
      const auto x = random_values<T>(size, 1);
      const int64_t angles = (each_row ? batch : 1) * time * pairs;
      const auto cos = random_values<T>(angles, 2), sin = random_values<T>(angles, 3);
      auto y = unwritten<T>(size), back = unwritten<T>(size);
      const auto inputs = [&](const std::vector<T>& in) {
        return RopeInputs<T>{in.data(), cos.data(), sin.data(), batch,
                             time,      heads,      pairs,      each_row};
      };
      rope(inputs(x), false, y.data());
      rope(inputs(x), true, back.data());
      const auto in = widened(x), c = widened(cos), s = widened(sin);
      std::vector<double> e_y(size), e_back(size);
      for (int64_t i = 0; i < size; i += 2) {
        const int64_t row = i / (2 * pairs), token = row / heads, p = i / 2 % pairs;
        const int64_t at = (each_row ? token : token % time) * pairs + p;
        e_y[i] = in[i] * c[at] - in[i + 1] * s[at];
        e_y[i + 1] = in[i] * s[at] + in[i + 1] * c[at];
        e_back[i] = in[i] * c[at] + in[i + 1] * s[at];
        e_back[i + 1] = in[i + 1] * c[at] - in[i] * s[at];
      }
      expect_close(y, e_y, "y");
      expect_close(back, e_back, "back");
    }
  }
}

TYPED_TEST(RopeTest, SameBitsForAnyThreads) {
  const auto x = random_values<TypeParam>(4 * 200 * 64, 1), cos = random_values<TypeParam>(3200, 2),
             sin = random_values<TypeParam>(3200, 3);
  expect_same_for_any_threads([&] {
    auto y = unwritten<TypeParam>(x.size());
    rope(RopeInputs<TypeParam>{x.data(), cos.data(), sin.data(), 2, 200, 4, 16, false}, false,
         y.data());
    return y;
  });
}

}  // namespace
}  // namespace hopmix::kernels

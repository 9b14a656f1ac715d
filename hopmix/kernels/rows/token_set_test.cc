#include "hopmix/kernels/rows/token_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace hopmix::kernels {
namespace {

// Around every power of 64, where the levels end; used again each time.
TEST(TokenSet, GivesWhatWasAddedInOrderOnce) {
  std::mt19937 generator(1);
  for (const int64_t size : {1, 2, 63, 64, 65, 4095, 4096, 4097, 262144, 262145}) {
    TokenSet set(size);
    for (const int count : {0, 1, 2, 40, 300}) {
      std::set<int32_t> expected;
      for (int n = 0; n < count; ++n) {
        const auto token = std::uniform_int_distribution<int64_t>(0, size - 1)(generator);
        for (const int64_t t : {token, int64_t{0}, size - 1}) {
          set.add(t);
          expected.insert(static_cast<int32_t>(t));
        }
      }
      std::vector<int32_t> taken;
      set.take([&](int32_t token) { taken.push_back(token); });
      EXPECT_EQ(taken, std::vector<int32_t>(expected.begin(), expected.end())) << size;
    }
  }
}

}  // namespace
}  // namespace hopmix::kernels

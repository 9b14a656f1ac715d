#include "hopmix/pattern/last_use.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hopmix {
namespace {

TEST(LastUse, EveryReadFindsItsTokenAndNoSlotIsWasted) {
  for (const char* spec : {"dense", "window(1)", "window(7)", "2^k", "k^2+1", "cached(2^k)",
                           "cached(k^2+1)", "strided(5)", "global(3)", "blocks(16)", "fenwick",
                           "random(3,1)", "offsets(7,11)", "window(2)|strided(9)"}) {
    for (const int64_t n : {0, 1, 2, 3, 63, 64, 65, 100, 300}) {
      SCOPED_TRACE(std::string(spec) + " on " + std::to_string(n));
      const Pattern pattern(spec, n);
      const LastUse use = last_use(pattern);
      const Csr csr = to_csr(pattern);
      std::vector<int64_t> held;  // by slot
      int64_t peak = 0;
      ASSERT_EQ(use.used[0], 0);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t r = csr.row_ptr[i]; r < csr.row_ptr[i + 1]; ++r) {
          ASSERT_EQ(held[use.slot[csr.cols[r]]], csr.cols[r]) << i;
        }
        if (use.slot[i] >= 0) {
          held.resize(std::max<size_t>(held.size(), use.slot[i] + 1), -1);
          held[use.slot[i]] = i;
        }
        ASSERT_EQ(use.used[i + 1], static_cast<int64_t>(held.size())) << i;
        int64_t live = 0;  // after token i, by definition
        for (int64_t j = 0; j <= i; ++j) {
          const auto* const later = csr.cols.data() + csr.row_ptr[i + 1];
          live += std::count(later, csr.cols.data() + csr.cols.size(), j) > 0;
        }
        peak = std::max(peak, live);
        ASSERT_EQ(use.used[i + 1], peak) << i;
      }
    }
  }
}

TEST(LastUse, ATokenThatNobodyReadsHasNoSlot) {
  const LastUse use = last_use(Pattern("offsets(3)", 5));
  EXPECT_EQ(use.slot, (std::vector<int32_t>{0, 1, -1, -1, -1}));
  EXPECT_EQ(use.used, (std::vector<int32_t>{0, 1, 2, 2, 2, 2}));
}

}  // namespace
}  // namespace hopmix

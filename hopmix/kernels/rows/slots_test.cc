#include "hopmix/kernels/rows/slots.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

constexpr int64_t kBlock = 32;

// What is in use: token by slot. Checks that a block's reads and own tokens have slots of their
// own.
class Holder {
 public:
  Holder(const Rows& rows, const Slots& slots) : rows_(rows), slots_(slots) {}

  void check(int64_t begin, int64_t end) {
    std::map<int32_t, int64_t> by_slot;
    std::vector<int32_t> scratch;
    for (int64_t i = begin; i < end; ++i) {
      hold(i, by_slot);
      for (const int32_t j : rows_.row(i, scratch)) hold(j, by_slot);
    }
  }

 private:
  void hold(int64_t token, std::map<int32_t, int64_t>& by_slot) {
    const int32_t slot = slots_.of(token);
    ASSERT_GE(slot, 0) << token;
    ASSERT_LT(slot, slots_.count()) << token;
    ASSERT_EQ(by_slot.try_emplace(slot, token).first->second, token) << "slot " << slot;
  }

  const Rows& rows_;
  const Slots& slots_;
};

TEST(Slots, ForwardKeepsTheSlotOfATokenWhileItMayBeRead) {
  for (const testing::Case& c : testing::compact_cases()) {
    SCOPED_TRACE(c.pattern);
    const Pattern pattern(c.pattern, c.time);
    const Rows rows(pattern);
    Slots slots(rows, c.time, kBlock);
    ASSERT_TRUE(slots.compact());
    EXPECT_LT(slots.count(), c.time);
    Holder holder(rows, slots);
    std::map<int64_t, int32_t> given;  // once, for good
    for (int64_t begin = 0; begin < c.time; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, c.time);
      slots.forward(rows, begin, end);
      for (int64_t i = begin; i < end; ++i) given[i] = slots.of(i);
      holder.check(begin, end);
      std::vector<int32_t> scratch;
      for (int64_t i = begin; i < end; ++i) {
        for (const int32_t j : rows.row(i, scratch)) ASSERT_EQ(slots.of(j), given[j]);
      }
    }
  }
}

TEST(Slots, BackwardListsEachTokenOnceBeforeItIsRead) {
  for (const testing::Case& c : testing::compact_cases()) {
    SCOPED_TRACE(c.pattern);
    const Pattern pattern(c.pattern, c.time);
    const Rows rows(pattern);
    Slots slots(rows, c.time, kBlock);
    Holder holder(rows, slots);
    std::set<int64_t> entered;
    std::vector<int32_t> scratch;
    for (int64_t begin = (c.time - 1) / kBlock * kBlock; begin >= 0; begin -= kBlock) {
      const int64_t end = std::min(begin + kBlock, c.time);
      slots.backward(rows, begin, end);
      for (const int32_t i : slots.entered()) ASSERT_TRUE(entered.insert(i).second) << i;
      for (int64_t i = begin; i < end; ++i) {
        ASSERT_TRUE(entered.count(i)) << i;
        for (const int32_t j : rows.row(i, scratch)) ASSERT_TRUE(entered.count(j)) << j;
      }
      holder.check(begin, end);
    }
    EXPECT_EQ(static_cast<int64_t>(entered.size()), c.time);
  }
}

TEST(Slots, PlainWhereReuseIsNotKnownOrGainsNothing) {
  const Pattern squares("k^2+1", 1000), dense("dense", 1000), cached("cached(2^k)", 1000);
  EXPECT_FALSE(Slots(Rows(squares), 1000, kBlock).compact());  // tokens die at no certain time
  EXPECT_FALSE(Slots(Rows(dense), 1000, kBlock).compact());    // all live
  EXPECT_FALSE(Slots(Rows(cached), 64, kBlock).compact());     // short
  const Csr listed = to_csr(cached);
  Slots plain(Rows(listed), 1000, kBlock);
  EXPECT_FALSE(plain.compact());
  EXPECT_EQ(plain.count(), 1000);
  EXPECT_EQ(plain.of(77), 77);
  plain.backward(Rows(listed), 992, 1000);
  EXPECT_EQ(plain.entered().size(), 1000u);
  plain.backward(Rows(listed), 960, 992);
  EXPECT_TRUE(plain.entered().empty());
}

}  // namespace
}  // namespace hopmix::kernels

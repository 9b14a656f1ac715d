#include "hopmix/kernels/decode/stream_slots.h"

#include <gtest/gtest.h>

#include "hopmix/base/error.h"

namespace hopmix::kernels {
namespace {

// Reads find the tokens of the row.
void expect_rows(StreamSlots slots, const std::string& spec, int64_t time) {
  const Pattern pattern(spec, time);
  std::vector<int32_t> held, row;  // the token in each slot
  for (int64_t i = 0; i < time; ++i) {
    ASSERT_EQ(slots.position(), i);
    std::vector<int32_t> found;
    for (const int32_t slot : slots.reads()) found.push_back(held[slot]);
    std::sort(found.begin(), found.end());
    pattern.row(i, row);
    ASSERT_EQ(found, row) << i;
    const int32_t slot = slots.advance();
    held.resize(slots.count(), -1);
    if (slot >= 0) held[slot] = static_cast<int32_t>(i);
  }
}

TEST(StreamSlots, ReadsFindTheirTokens) {
  for (const char* spec :
       {"dense", "window(1)", "window(7)", "2^k", "cached(2^k)", "k^2+1", "cached(k^2+1)",
        "cached(fib)", "strided(5)", "global(3)", "blocks(16)", "fenwick", "random(4,1)",
        "window(3)|cached(2^k)", "window(2)|strided(9)", "offsets(7,11)"}) {
    SCOPED_TRACE(spec);
    expect_rows(StreamSlots(spec), spec, 1000);
    expect_rows(StreamSlots(spec, 1000), spec, 1000);
    expect_rows(StreamSlots(spec, 1), spec, 1);
  }
  expect_rows(StreamSlots("cached(2^k)"), "cached(2^k)", 10000);  // binds again
  expect_rows(StreamSlots("offsets(5000)"), "offsets(5000)", 10000);
}

TEST(StreamSlots, NoMoreThanThePeak) {
  const auto count_after = [](StreamSlots slots, int64_t time) {
    for (int64_t i = 0; i < time; ++i) slots.advance();
    return slots.count();
  };
  EXPECT_EQ(count_after(StreamSlots("cached(k^2+1)"), 299), 14) << "docs/patterns.md";
  EXPECT_EQ(count_after(StreamSlots("cached(2^k)"), 299), 9);
  EXPECT_EQ(count_after(StreamSlots("window(7)"), 100000), 7);
  EXPECT_EQ(count_after(StreamSlots("offsets(7,11)", 1000), 1000), 11);
  EXPECT_EQ(count_after(StreamSlots("offsets(7,11)"), 1000), 1000) << "without an end";
  EXPECT_EQ(count_after(StreamSlots("dense"), 100), 100);
}

TEST(StreamSlots, PastAKnownLengthIsAnError) {
  for (const char* spec : {"window(3)", "2^k"}) {
    StreamSlots slots(spec, 5);
    for (int64_t i = 0; i < 5; ++i) slots.advance();
    EXPECT_THROW(slots.reads(), Error);
    EXPECT_THROW(slots.advance(), Error);
    EXPECT_EQ(slots.position(), 5);
  }
}

}  // namespace
}  // namespace hopmix::kernels

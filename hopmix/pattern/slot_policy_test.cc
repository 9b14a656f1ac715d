#include "hopmix/pattern/slot_policy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "hopmix/base/error.h"
#include "hopmix/pattern/matrix_market.h"

namespace hopmix {
namespace {

// A stream that stores each token itself as its entry.
class Stream {
 public:
  explicit Stream(const std::string& spec, int64_t length = 0) : slots(Pattern(spec, 1), length) {}

  // The tokens that the next one reads.
  std::vector<int32_t> reads() {
    std::vector<int32_t> read = slots.row(position);
    if (slots.kind() == SlotPolicy::Kind::kNextRow) {
      read.assign(held.begin(), held.begin() + static_cast<int64_t>(read.size()));
      std::sort(read.begin(), read.end());
    } else {
      for (int32_t& j : read) j = held[slots.slot_of(j)];
    }
    return read;
  }

  void advance() {
    const SlotPolicy::Change change = slots.store(position, held.data());
    for (const int32_t slot : change.freed) held[slot] = -1;
    if (change.slot >= static_cast<int32_t>(held.size())) held.resize(change.slot + 1);
    if (change.slot >= 0) held[change.slot] = static_cast<int32_t>(position);
    for (const auto& [from, to] : change.moves) held[to] = held[from];
    ++position;
  }

  SlotPolicy slots;
  std::vector<int32_t> held;
  int64_t position = 0;
};

void expect_rows(const std::string& spec, int64_t length, int64_t time) {
  SCOPED_TRACE(spec + " of " + std::to_string(length));
  Stream stream(spec, length);
  const Pattern pattern(spec, time);
  std::vector<int32_t> row;
  for (int64_t i = 0; i < time; ++i) {
    pattern.row(i, row);
    ASSERT_EQ(stream.reads(), row) << i;
    ASSERT_LE(static_cast<int64_t>(row.size()), stream.slots.used(i)) << i;
    stream.advance();
    ASSERT_LE(static_cast<int64_t>(stream.held.size()), stream.slots.slots(i + 1)) << i;
  }
}

TEST(SlotPolicy, ReadsFindTheirTokens) {
  for (const char* spec :
       {"dense", "window(1)", "window(7)", "2^k", "cached(2^k)", "k^2+1", "cached(k^2+1)",
        "cached(fib)", "strided(5)", "global(3)", "blocks(16)", "fenwick", "random(4,1)",
        "window(3)|cached(2^k)", "window(2)|strided(9)", "offsets(7,11)"}) {
    expect_rows(spec, 0, 500);
    expect_rows(spec, 500, 500);
    expect_rows(spec, 1, 1);
  }
}

TEST(SlotPolicy, AStreamParsesForMoreTokens) {
  for (const char* spec : {"cached(2^k)", "offsets(5000)"}) {
    Stream stream(spec);
    const Pattern pattern(spec, 10000);
    std::vector<int32_t> row;
    for (int64_t i = 0; i < 10000; ++i, stream.advance()) {
      pattern.row(i, row);
      ASSERT_EQ(stream.reads(), row) << i;
    }
  }
}

TEST(SlotPolicy, NoMoreThanThePeak) {
  const auto slots_after = [](Stream stream, int64_t time) {
    while (stream.position < time) stream.advance();
    return stream.held.size();
  };
  EXPECT_EQ(slots_after(Stream("cached(k^2+1)"), 299), 14u) << "docs/patterns.md";
  EXPECT_EQ(slots_after(Stream("cached(2^k)"), 299), 9u);
  EXPECT_EQ(slots_after(Stream("window(7)"), 100000), 7u);
  EXPECT_EQ(slots_after(Stream("offsets(7,11)", 1000), 1000), 11u);
  EXPECT_EQ(slots_after(Stream("offsets(7,11)"), 1000), 1000u) << "without an end";
  EXPECT_EQ(slots_after(Stream("dense"), 100), 100u);
}

TEST(SlotPolicy, RoomGrowsByEighths) {
  const SlotPolicy all(Pattern("2^k", 1)), known(Pattern("offsets(7,11)", 1), 1000);
  EXPECT_EQ(all.room(0), 0);
  EXPECT_EQ(all.room(7), 7);
  EXPECT_EQ(all.room(17), 20);
  EXPECT_EQ(all.room(1000), 1024);
  EXPECT_EQ(all.slots(1000), 1024);
  EXPECT_EQ(known.room(10), 10);
  EXPECT_EQ(known.slots(1000), 11) << "never more than the peak";
  EXPECT_EQ(SlotPolicy(Pattern("window(9)", 1)).slots(5), 5);
}

TEST(SlotPolicy, CachedPatternsHoldTheirPeakAndNotATokenMore) {
  SlotPolicy slots(Pattern("cached(k^2+1)", 1));
  for (const int64_t t : {100, 10000, 1000000}) {
    EXPECT_LE(slots.used(t), static_cast<int64_t>(std::sqrt(static_cast<double>(t))) + 1);
  }
  for (const int64_t t : {100, 3000}) {
    int64_t peak = 0;
    for (int64_t i = 0; i <= t; ++i) peak = std::max(peak, slots.used(i));
    EXPECT_EQ(slots.slots(t), peak);
  }
  EXPECT_EQ(SlotPolicy(Pattern("window(7)", 1)).slots(int64_t{1} << 20), 7);
}

TEST(SlotPolicy, AFileOfATextHasALengthOfItsOwn) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / ("slots " + std::to_string(getpid()) + ".mtx");
  write_matrix_market(file, to_csr(Pattern("k^2+1", 3000)));
  SlotPolicy slots(Pattern("dag(" + file.string() + ")", 1));
  std::filesystem::remove(file);  // it is not read again
  EXPECT_EQ(slots.used(3000), last_use(Pattern("k^2+1", 3000)).used.back());
  const Pattern pattern("k^2+1", 3000);
  for (const int64_t i : {100, 2999}) {
    std::vector<int32_t> row;
    pattern.row(i, row);
    EXPECT_EQ(slots.row(i), row);
  }
}

TEST(SlotPolicy, PastAKnownLengthIsAnError) {
  Stream stream("2^k", 5);
  while (stream.position < 5) stream.advance();
  stream.slots.check_length(5);
  EXPECT_THROW(stream.slots.check_length(6), Error);
  EXPECT_THROW(stream.reads(), Error);
  EXPECT_THROW(stream.advance(), Error);
  SlotPolicy(Pattern("2^k", 5)).check_length(1000);
}

}  // namespace
}  // namespace hopmix

#include "hopmix/decode/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

#include "hopmix/base/testing.h"

namespace hopmix::decode {
namespace {

// The definition: the text before the stop string that is completed first.
std::string before_stop(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 0; end <= text.size(); ++end) {
    std::string shortest = text;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) {
        shortest = std::min(shortest, text.substr(0, end - stop.size()),
                            [](const auto& a, const auto& b) { return a.size() < b.size(); });
      }
    }
    if (shortest != text) return shortest;
  }
  return text;
}

TEST(StopStrings, WithoutAnyTextPassesAtOnce) {
  StopStrings none({});
  EXPECT_EQ(none.push("abc"), "abc");
  EXPECT_EQ(none.finish(), "");
  EXPECT_FALSE(none.stopped());
}

TEST(StopStrings, HoldsBackWhatMayBegin) {
  StopStrings stops({"\n\n", "END"});
  EXPECT_EQ(stops.push("one\n"), "one");
  EXPECT_EQ(stops.push("two E"), "\ntwo ");
  EXPECT_EQ(stops.push("N"), "");
  EXPECT_EQ(stops.push("E"), "EN");
  EXPECT_EQ(stops.push("ND"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.push("more"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopStrings, WhatWasHeldBackIsShownAtTheEnd) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.push("the EN"), "the ");
  EXPECT_EQ(stops.finish(), "EN");
  EXPECT_FALSE(stops.stopped());
}

TEST(StopStrings, HowTheTextIsCutChangesNothing) {
  std::mt19937_64 random(2);
  const auto word = [&](size_t most) {
    std::string text;
    for (size_t size = 1 + random() % most; size > 0; --size) text += "ab"[random() % 2];
    return text;
  };
  int stopped = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<std::string> list;
    for (size_t count = random() % 4; count > 0; --count) list.push_back(word(6));
    const std::string text = word(30);
    StopStrings stops(list);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 5;
      shown += stops.push(std::string_view(text).substr(at, size));
      at += size;
    }
    shown += stops.finish();
    EXPECT_EQ(shown, before_stop(text, list)) << text;
    stopped += stops.stopped();
  }
  EXPECT_GT(stopped, 1000);
  EXPECT_LT(stopped, 2500);
}

TEST(StopStrings, AnEmptyOneIsAnError) {
  EXPECT_EQ(error_of([] { StopStrings({"a", ""}); }), "stop = '': must not be empty");
}

}  // namespace
}  // namespace hopmix::decode

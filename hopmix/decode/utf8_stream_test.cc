#include "hopmix/decode/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "hopmix/base/utf8.h"

namespace hopmix::decode {
namespace {

std::string all_at_once(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.push(bytes);
  return text + stream.finish();
}

// U+FFFD, `count` times.
std::string bad(int count) {
  std::string text;
  while (count-- > 0) text += "\uFFFD";
  return text;
}

// The encoding of a code point by its definition, surrogates and all.
std::string encoded(uint32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

TEST(Utf8Stream, EveryCharacterPassesAndNothingElse) {
  for (uint32_t c = 0; c < 0x120000; ++c) {
    const std::string bytes = encoded(c);
    const bool valid = c < 0xd800 || (c > 0xdfff && c <= 0x10ffff);
    ASSERT_EQ(all_at_once(bytes), valid ? bytes : bad(static_cast<int>(bytes.size()))) << c;
    ASSERT_EQ(first_bad_utf8(bytes).has_value(), !valid) << c;
  }
}

TEST(Utf8Stream, ByteByByteACharacterComesWhole) {
  Utf8Stream stream;
  for (const std::string character : {"a", "é", "日", "🂡"}) {
    for (size_t i = 0; i + 1 < character.size(); ++i) {
      EXPECT_EQ(stream.push(character.substr(i, 1)), "");
    }
    EXPECT_EQ(stream.push(character.substr(character.size() - 1)), character);
  }
  EXPECT_EQ(stream.finish(), "");
}

// The examples of the Unicode standard, section 3.9 (tables 3-8 to 3-11).
TEST(Utf8Stream, ReplacesMaximalSubparts) {
  EXPECT_EQ(all_at_once("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), bad(8) + "A");
  EXPECT_EQ(all_at_once("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), bad(8) + "A");
  EXPECT_EQ(all_at_once("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), bad(5) + "A" + bad(2) + "B");
  EXPECT_EQ(all_at_once("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), bad(4) + "A");
}

TEST(Utf8Stream, WhatIsCutAtTheEndIsOneReplacement) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xf0\x9f\x82"), "a");
  EXPECT_EQ(stream.finish(), bad(1));
  EXPECT_EQ(stream.push("\xa1"), bad(1)) << "what was held is forgotten";
  EXPECT_EQ(stream.push("b"), "b");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, HowBytesAreCutChangesNothing) {
  std::mt19937_64 random(1);
  const std::vector<std::string> parts = {"a", "é", "日", "🂡", "\xe0", "\xf0\x9f", "\x80", "\xff"};
  for (int trial = 0; trial < 300; ++trial) {
    std::string bytes;
    for (int i = 0; i < 20; ++i) bytes += parts[random() % parts.size()];
    Utf8Stream stream;
    std::string text;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = 1 + random() % 3;
      const std::string piece = stream.push(std::string_view(bytes).substr(at, size));
      EXPECT_FALSE(first_bad_utf8(piece)) << "a piece is whole";
      text += piece;
      at += size;
    }
    EXPECT_EQ(text + stream.finish(), all_at_once(bytes));
  }
}

}  // namespace
}  // namespace hopmix::decode

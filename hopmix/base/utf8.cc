#include "hopmix/base/utf8.h"

namespace hopmix {
namespace {

// The bytes that may follow a first byte: how many, and the range of the first of them (the others
// are 80..BF). The range excludes overlong forms, surrogates and values above U+10FFFF (table 3-7
// of the Unicode standard).
struct Rest {
  size_t count;
  unsigned char least, most;
};

Rest rest_of(unsigned char first) {
  if (first < 0x80) return {0, 0, 0};
  if (first >= 0xc2 && first <= 0xdf) return {1, 0x80, 0xbf};
  if (first == 0xe0) return {2, 0xa0, 0xbf};
  if (first == 0xed) return {2, 0x80, 0x9f};
  if (first >= 0xe1 && first <= 0xef) return {2, 0x80, 0xbf};
  if (first == 0xf0) return {3, 0x90, 0xbf};
  if (first >= 0xf1 && first <= 0xf3) return {3, 0x80, 0xbf};
  if (first == 0xf4) return {3, 0x80, 0x8f};
  return {1, 1, 0};  // not a first byte: nothing may follow
}

}  // namespace

Utf8Character first_utf8_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  Rest rest = rest_of(byte(0));
  if (rest.least > rest.most) return {1, Utf8Character::kBroken};
  for (size_t i = 1; i <= rest.count; ++i) {
    if (i == text.size()) return {i, Utf8Character::kCut};
    if (byte(i) < rest.least || byte(i) > rest.most) return {i, Utf8Character::kBroken};
    rest.least = 0x80;
    rest.most = 0xbf;
  }
  return {rest.count + 1, Utf8Character::kWhole};
}

std::optional<size_t> first_bad_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = first_utf8_character(text.substr(at));
    if (character.state != Utf8Character::kWhole) return at;
    at += character.length;
  }
  return std::nullopt;
}

std::string valid_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const Utf8Character character = first_utf8_character(text);
    const bool whole = character.state == Utf8Character::kWhole;
    valid += whole ? text.substr(0, character.length) : "\uFFFD";
    text.remove_prefix(character.length);
  }
  return valid;
}

}  // namespace hopmix

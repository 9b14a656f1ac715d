#include "hopmix/decode/utf8_stream.h"

#include <algorithm>

namespace hopmix::decode {
namespace {

constexpr const char* kReplacement = "\uFFFD";

struct Character {
  size_t length;                         // in bytes, at least 1
  enum { kWhole, kBroken, kCut } state;  // cut: the text ends in the middle of it
};

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

// The first character of `text`, which is not empty.
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  Rest rest = rest_of(byte(0));
  if (rest.least > rest.most) return {1, Character::kBroken};
  for (size_t i = 1; i <= rest.count; ++i) {
    if (i == text.size()) return {i, Character::kCut};
    if (byte(i) < rest.least || byte(i) > rest.most) return {i, Character::kBroken};
    rest.least = 0x80;
    rest.most = 0xbf;
  }
  return {rest.count + 1, Character::kWhole};
}

}  // namespace

std::optional<size_t> first_bad_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character character = first_character(text.substr(at));
    if (character.state != Character::kWhole) return at;
    at += character.length;
  }
  return std::nullopt;
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string whole;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Character character = first_character(rest);
    if (character.state == Character::kCut) break;
    if (character.state == Character::kWhole) {
      whole += rest.substr(0, character.length);
    } else {
      whole += kReplacement;
    }
    rest.remove_prefix(character.length);
  }
  held_.erase(0, held_.size() - rest.size());
  return whole;
}

std::string Utf8Stream::finish() {
  const bool cut = !held_.empty();
  held_.clear();
  return cut ? kReplacement : "";
}

}  // namespace hopmix::decode

// Where text stops being UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace hopmix {

/// The first character of a text: its bytes, at least 1, and whether they are one. Bytes that are
/// not are a maximal subpart of an ill-formed sequence, as Unicode recommends; a text that ends in
/// the middle of a character is cut.
struct Utf8Character {
  size_t length;
  enum { kWhole, kBroken, kCut } state;
};

/// The first character of `text`, which must not be empty.
Utf8Character first_utf8_character(std::string_view text);

/// The byte offset of the first invalid character in `text`; none if `text` is valid UTF-8.
std::optional<size_t> first_bad_utf8(std::string_view text);

/// `text` with U+FFFD for what is not UTF-8: what a message may quote.
std::string valid_utf8(std::string_view text);

}  // namespace hopmix

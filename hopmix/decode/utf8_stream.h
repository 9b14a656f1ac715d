// Bytes in, whole characters out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace hopmix::decode {

/// Where UTF-8 first fails in `text`: the byte at which a character that is not one begins.
std::optional<size_t> first_bad_utf8(std::string_view text);

/// Turns bytes that come in any pieces into UTF-8, a character whole or not at all. Bytes that are
/// no UTF-8 become U+FFFD, one for each longest beginning of a character that fails, as Unicode
/// recommends ("substitution of maximal subparts").
class Utf8Stream {
 public:
  /// The characters that `bytes` completes. What may be the beginning of one is held back.
  std::string push(std::string_view bytes);

  /// What was held back, which nothing will complete now: U+FFFD, or nothing.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace hopmix::decode

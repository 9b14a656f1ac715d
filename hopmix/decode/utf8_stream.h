// Turns a stream of bytes into whole UTF-8 characters.
#pragma once

#include <string>
#include <string_view>

namespace hopmix::decode {

/// Turns bytes that arrive in pieces into UTF-8, emitting only whole characters. Invalid bytes
/// become U+FFFD, one for each maximal subpart of an ill-formed sequence, as Unicode recommends.
class Utf8Stream {
 public:
  /// Adds `bytes` and returns the characters that are now complete; an incomplete one is held back.
  std::string push(std::string_view bytes);

  /// Returns what is still held back, once no more bytes come: U+FFFD, or nothing.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace hopmix::decode

// A fast hash that tells contents apart. Not for adversaries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hopmix {

/// The hash of bytes that arrive in pieces, of any sizes.
class ContentHash {
 public:
  void add(std::string_view bytes);

  uint64_t value() const;

 private:
  void mix(uint64_t word);

  uint64_t state_ = 0, size_ = 0, held_ = 0;  // held: the bytes after the last whole word
};

/// What a file or several hold, as far as it takes to notice a change.
struct Digest {
  int64_t bytes = 0;
  uint64_t hash = 0;

  friend bool operator==(const Digest&, const Digest&) = default;
};

/// A number in 16 hexadecimal digits.
std::string hex(uint64_t value);

}  // namespace hopmix

#include "hopmix/base/content_hash.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "hopmix/base/mix_bits.h"

namespace hopmix {

void ContentHash::mix(uint64_t word) { state_ = mix_bits((state_ ^ word) + kGoldenStep); }

void ContentHash::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t held = size_ % sizeof held_, count = std::min(sizeof held_ - held, bytes.size());
    std::memcpy(reinterpret_cast<char*>(&held_) + held, bytes.data(), count);
    size_ += count;
    bytes.remove_prefix(count);
    if (size_ % sizeof held_ != 0) return;
    mix(held_);
    held_ = 0;
  }
}

uint64_t ContentHash::value() const {
  ContentHash end = *this;
  end.mix(held_);
  end.mix(size_);
  return end.state_;
}

std::string hex(uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

}  // namespace hopmix

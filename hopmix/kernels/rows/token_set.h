// A set of tokens that gives them back in order: what a search over links collects.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace hopmix::kernels {

/// Tokens below `size`, a bit each, and above every 64 bits one that says whether any is set. So
/// neither adding, nor finding double ones, nor giving them back in order needs a comparison of
/// tokens.
class TokenSet {
 public:
  explicit TokenSet(int64_t size) {
    int64_t bits = std::max<int64_t>(size, 1);
    do {
      bits = (bits + 63) / 64;
      levels_.emplace_back(bits);
    } while (bits > 1);
  }

  void add(int64_t token) {
    for (std::vector<uint64_t>& level : levels_) {
      level[token / 64] |= uint64_t{1} << (token % 64);
      token /= 64;
    }
  }

  /// Calls body with every token, ascending, and leaves the set empty.
  template <typename Body>
  void take(const Body& body) {
    take(levels_.size() - 1, 0, body);
  }

 private:
  template <typename Body>
  void take(size_t level, int64_t word, const Body& body) {
    uint64_t& bits = levels_[level][word];
    for (; bits != 0; bits &= bits - 1) {
      const int64_t at = word * 64 + std::countr_zero(bits);
      if (level == 0) {
        body(static_cast<int32_t>(at));
      } else {
        take(level - 1, at, body);
      }
    }
  }

  std::vector<std::vector<uint64_t>> levels_;  // [0]: a bit a token
};

}  // namespace hopmix::kernels

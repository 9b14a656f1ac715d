// How a pass over a sequence is cut into blocks of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hopmix/kernels/rows.h"

namespace hopmix::kernels {

/// Rows [b * block, (b + 1) * block) are worked on together. Results do not depend on it.
///
/// Each step of a block sweeps one array (the keys, say), so a long block has the nearer cache to
/// itself for a while; a short one keeps what it computes for each read, and the slots of a pattern
/// that uses them again, in the nearest. A team waits for one another at every block.
struct BlockPlan {
  int64_t length, block;

  BlockPlan(const Rows& rows, int64_t sequence, int64_t team) : length(sequence), block(kShort) {
    if (length <= kShort || (rows.inherits() && team == 1)) return;
    std::vector<int32_t> scratch;
    const auto reads = static_cast<int64_t>(rows.row(length - 1, scratch).size()) + 1;
    if (team > 1) {
      block = std::clamp(kReads / reads, kShort, rows.inherits() ? kLong / 2 : kLong);
    } else if (reads >= kManyReads && length >= 2 * kLong) {
      block = std::clamp(kReads / reads, kShort, kLong);
    }
  }

 private:
  static constexpr int64_t kShort = 32, kLong = 1024;
  static constexpr int64_t kManyReads = 32, kReads = 1 << 16;
};

}  // namespace hopmix::kernels

// How a pass over a sequence is cut into blocks of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "hopmix/kernels/rows/rows.h"

namespace hopmix::kernels {

/// Rows [b * block, (b + 1) * block) are worked on together. Results do not depend on it.
///
/// Each step of a block sweeps one array (the keys, say), so during a long block that array has the
/// L2 cache to itself; a short block keeps in the L1 cache what it computes for each read, and the
/// slots of a pattern that reuses them. The members of a team wait for each other at every block.
/// With `heads` in work together, each read needs that many times more memory.
struct BlockPlan {
  int64_t length, block;

  BlockPlan(const Rows& rows, int64_t sequence, int64_t team, int64_t heads = 1, bool apart = false)
      : length(sequence), block(kShort) {
    if (length <= kShort || (rows.inherits() && team == 1)) return;
    const int64_t reads = (most_reads(rows, length) + 1) * heads;
    if (apart) {
      block = std::clamp(kReadsApart / reads, kShort, kLongApart);
    } else if (team > 1) {
      block = std::clamp(kReads / reads, kShort, rows.inherits() ? kLong / 2 : kLong);
    } else if (reads >= kManyReads && length >= 2 * kLong) {
      block = std::clamp(kReads / reads, kShort, kLong);
    }
  }

  int64_t count() const { return (length + block - 1) / block; }

  /// Block n: its first row and the one behind its last.
  std::pair<int64_t, int64_t> rows(int64_t n) const {
    return {n * block, std::min(n * block + block, length)};
  }

 private:
  // Of some rows: the last one alone may be a short one, as where a block of blocks(65536) begins.
  static int64_t most_reads(const Rows& rows, int64_t length) {
    constexpr int64_t kSome = 8;
    std::vector<int32_t> scratch;
    size_t most = 0;
    for (int64_t n = 1; n <= kSome; ++n) {
      most = std::max(most, rows.row(length * n / kSome - 1, scratch).size());
    }
    return static_cast<int64_t>(most);
  }

  static constexpr int64_t kShort = 32, kLong = 1024;
  static constexpr int64_t kManyReads = 32, kReads = 1 << 16, kReadsApart = 1 << 14,
                           kLongApart = 256;
};

}  // namespace hopmix::kernels

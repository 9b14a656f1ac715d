// How a pass over a sequence is cut into blocks of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hopmix/kernels/rows.h"

namespace hopmix::kernels {

/// Alone, a block is short, so that what it computes a read stays in the nearest cache. A team
/// waits for one another at every block: it takes more work at a time.
struct BlockPlan {
  int64_t length, block;

  BlockPlan(const Rows& rows, int64_t sequence, int64_t members) : length(sequence), block(kAlone) {
    if (members == 1 || length == 0) return;
    std::vector<int32_t> scratch;
    const auto reads = static_cast<int64_t>(rows.row(length - 1, scratch).size());
    block = std::clamp(kTeamReads / (reads + 1), kAlone, kMost);
  }

 private:
  static constexpr int64_t kAlone = 32, kMost = 1024, kTeamReads = 1 << 14;
};

}  // namespace hopmix::kernels

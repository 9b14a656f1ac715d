// The tokens that enter the slots with each block of a backward pass.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/row_blocks.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/slots.h"

namespace hopmix::kernels {

/// Moves `slots` on to the block that is asked for, block 0 being the last of the sequence; each
/// member of a team has one, and slots, of its own. A view of its arguments.
class BackwardEntering {
 public:
  BackwardEntering(const Rows& rows, const BlockPlan& plan, Slots& slots)
      : rows_(rows), plan_(plan), slots_(slots) {}

  /// A member's share of what enters with block n: this one, or the one after the last asked for.
  Entering operator()(int64_t n, const Member& crew) {
    if (n != block_) {
      const auto [first, last] = plan_.rows(plan_.count() - 1 - n);
      slots_.backward(rows_, first, last);
      block_ = n;
    }
    const auto [from, to] = crew.share(0, static_cast<int64_t>(slots_.entered().size()));
    return Entering{slots_.entered().data() + from, 0, to - from, &slots_};
  }

 private:
  const Rows& rows_;
  const BlockPlan& plan_;
  Slots& slots_;
  int64_t block_ = -1;
};

}  // namespace hopmix::kernels

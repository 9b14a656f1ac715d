// Gradients of what several rows, and the query heads of a group, read.
#pragma once

#include <algorithm>
#include <cstdint>

#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/pass.h"

namespace hopmix::kernels {

/// Written at once if one query head reads the key/value head, else summed over the group, in the
/// order of its heads.
template <typename T>
class SharedGradient {
 public:
  using A = Accumulator<T>;

  SharedGradient(HeadOf<T> out, const BlockPlan& plan, int64_t group = 1)
      : out_(out), group_(group), block_(out.copy(plan.block)) {
    if (!out || group == 1) return;
    block_ = PaddedRows<A>(plan.block, out.width);
    sum_ = PaddedRows<A>(plan.length, out.width);
  }

  explicit operator bool() const { return static_cast<bool>(out_); }

  /// Where rows of the block that starts at `first` are written.
  BlockRows<A> rows(int64_t first) const {
    return group_ == 1 ? out_.block(block_, first) : BlockRows<A>{block_.view(), first};
  }

  /// Takes these columns of the rows of `part`, complete as far as head b.head of the group goes.
  void store(const Block& b, const ReadsView& part, Columns c) const {
    if (group_ == 1) return out_.store(block_, b.first, part.begin(), part.end(), c.from, c.to);
    for (int64_t i = part.begin(); out_ && i < part.end(); ++i) {
      A* sum = sum_[i];
      const A* add = block_[i - b.first];
      for (int64_t n = c.from; n < c.to; ++n) sum[n] = b.head == 0 ? add[n] : sum[n] + add[n];
      if (b.head + 1 < group_) continue;
      for (int64_t n = c.from; n < std::min(c.to, out_.width); ++n) {
        out_[i][n] = static_cast<T>(sum[n]);
      }
    }
  }

  /// The same of what was summed by slot.
  void take(const PaddedRows<A>& by_slot, const Block& b, const ReadsView& part, Columns c) const {
    if (!out_) return;
    const BlockRows<A> rows = this->rows(b.first);
    for (int64_t i = part.begin(); i < part.end(); ++i) {
      const A* sum = by_slot[b.slots.of(i)];
      std::copy(sum + c.from, sum + c.to, rows[i] + c.from);
    }
    store(b, part, c);
  }

 private:
  HeadOf<T> out_;
  int64_t group_;
  PaddedRows<A> block_, sum_;
};

}  // namespace hopmix::kernels

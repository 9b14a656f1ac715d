// Gradients into keys and values that a group of query heads shares.
#pragma once

#include <algorithm>
#include <cstdint>

#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/row_blocks.h"
#include "hopmix/kernels/rows/row_loops.h"

namespace hopmix::kernels {

/// Written at once if one query head reads the key/value head, else summed over the group, in the
/// order of its heads.
template <typename T>
class SharedGradient {
 public:
  using A = Accumulator<T>;

  SharedGradient(HeadOf<T> out, const BlockPlan& plan, int64_t group)
      : out_(out), group_(group), rows_(out, plan.block) {
    if (!out || group == 1) return;
    block_ = PaddedRows<A>(plan.block, out.width);
    sum_ = PaddedRows<A>(plan.length, out.width);
  }

  explicit operator bool() const { return static_cast<bool>(out_); }

  /// Where rows of the block that starts at `first` are written.
  BlockRows<A> rows(int64_t first) const {
    return group_ == 1 ? rows_.rows(first) : BlockRows<A>{block_.view(), first};
  }

  /// The same from slots: columns [from, to) of rows [first, last).
  void take(RowsAt<A> by_slot, const Slots& slots, int64_t first, int64_t last, int64_t from,
            int64_t to) const {
    const BlockRows<A> rows = this->rows(first);
    for (int64_t i = first; i < last; ++i) {
      const A* sum = by_slot[slots.of(i)];
      std::copy(sum + from, sum + to, rows[i] + from);
    }
  }

  /// Takes columns [from, to) of rows [first, last), written for query head `member` of the group.
  void store(int64_t member, int64_t first, int64_t last, int64_t from, int64_t to) const {
    if (!out_) return;
    if (group_ == 1) return rows_.store(first, first, last, from, to);
    for (int64_t i = first; i < last; ++i) {
      A* sum = sum_[i];
      const A* add = block_[i - first];
      for (int64_t c = from; c < to; ++c) sum[c] = member == 0 ? add[c] : sum[c] + add[c];
      if (member + 1 < group_) continue;
      for (int64_t c = from; c < std::min(to, out_.width); ++c) out_[i][c] = static_cast<T>(sum[c]);
    }
  }

 private:
  HeadOf<T> out_;
  int64_t group_;
  UnstagedRows<T> rows_;
  PaddedRows<A> block_, sum_;
};

}  // namespace hopmix::kernels

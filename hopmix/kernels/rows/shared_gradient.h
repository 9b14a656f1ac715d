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

 private:
  HeadOf<T> out_;
  int64_t group_;
  PaddedRows<A> block_, sum_;
};

/// The same of what several rows read: summed by slot, last row first, until a row is done.
template <typename T>
class SlotGradient {
 public:
  using A = Accumulator<T>;

  /// `wanted`: where to sum, even if the result goes nowhere.
  template <typename Part>
  SlotGradient(HeadOf<T> out, const Pass<Part>& pass, int64_t group, bool wanted)
      : out_(out, pass.plan(), group), width_(padded(out.width)), by_slot_(pass.by_slot(wanted)) {}
  template <typename Part>
  SlotGradient(HeadOf<T> out, const Pass<Part>& pass, int64_t group = 1)
      : SlotGradient(out, pass, group, static_cast<bool>(out)) {}

  explicit operator bool() const { return static_cast<bool>(out_); }

  RowsAt<A> view() const { return by_slot_.view(); }
  A* data() const { return by_slot_[0]; }

  void enter(const Entering& tokens) const {
    if (data() != nullptr) enter_loops<A>().zero(tokens, width_, view());
  }

  /// Takes these columns of the rows of `part`, complete as far as head b.head of the group goes.
  void store(const Block& b, const ReadsView& part, Columns c) const {
    if (!out_) return;
    const BlockRows<A> rows = out_.rows(b.first);
    for (int64_t i = part.begin(); i < part.end(); ++i) {
      const A* sum = by_slot_[b.slots.of(i)];
      std::copy(sum + c.from, sum + c.to, rows[i] + c.from);
    }
    out_.store(b, part, c);
  }

 private:
  SharedGradient<T> out_;
  int64_t width_;
  PaddedRows<A> by_slot_;
};

}  // namespace hopmix::kernels

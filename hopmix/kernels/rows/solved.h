// Where a recurrence writes what it solved.
#pragma once

#include <cstdint>

#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/pass.h"

namespace hopmix::kernels {

/// Forward: rows of y. Backward, for which `y` is null: these before they were rounded, of one head
/// after another, if what was given for them is rounded.
template <typename T>
class Solved {
 public:
  using A = Accumulator<T>;

  template <typename Part>
  Solved(HeadOf<T> y, const Pass<Part>& pass)
      : y_(y),
        memory_(kRoundsOutput<T> && !y ? pass.plan().length * y.width : 0),
        exact_(memory_.data(), y.width),
        copy_(y ? y.copy(pass.plan().block) : exact_.copy(pass.plan().block)) {}

  BlockRows<A> rows(int64_t first) const {
    return y_ ? y_.block(copy_, first) : exact_.block(copy_, first);
  }

  void store(const Block& b, const ReadsView& part, Columns c) const {
    y_.store(copy_, b.first, part.begin(), part.end(), c.from, c.to);
    exact_.store(copy_, b.first, part.begin(), part.end(), c.from, c.to);
  }

  /// What a backward reads.
  HeadOf<const A> exact(const HeadOf<const T>& given) const {
    if constexpr (kRoundsOutput<T>) {
      return {memory_.data(), exact_.width};
    } else {
      return given;
    }
  }

 private:
  HeadOf<T> y_;
  Buffer<A> memory_;
  HeadOf<A> exact_;
  PaddedRows<A> copy_;
};

}  // namespace hopmix::kernels

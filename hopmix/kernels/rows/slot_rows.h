// Rows of one head that other rows read.
#pragma once

#include <cstdint>

#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/slots.h"

namespace hopmix::kernels {

/// Input rows by slot, `stride` apart: copied as their tokens enter, or read where they lie if that
/// is the same. Copies cost a third of a forward pass over a short pattern, and lines that two
/// cores have read are slow to write.
template <typename T>
class SlotRows {
 public:
  using A = Accumulator<T>;

  SlotRows(const HeadOf<const T>& from, const Slots& slots, int64_t stride)
      : from_(from),
        in_place_(slots.compact() || from.width != stride ? nullptr : from.matrix()),
        copy_(in_place_ ? 0 : slots.count(), stride) {}

  void enter(const Entering& tokens) const {
    if (!in_place_) enter_loops<T>().copy(tokens, from_, copy_.view());
  }

  const A* data() const { return in_place_ ? in_place_ : copy_[0]; }
  RowsAt<const A> view() const { return {data(), in_place_ ? from_.width : copy_.view().stride}; }

 private:
  HeadOf<const T> from_;
  const A* in_place_;
  PaddedRows<A> copy_;
};

}  // namespace hopmix::kernels

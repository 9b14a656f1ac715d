// What other rows read of one head.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/slots.h"

namespace hopmix::kernels {

/// Input rows by slot, `stride` apart: copied as their tokens enter, or read where they lie if that
/// is the same; without rows nothing. Copies cost a third of a forward pass over a short pattern,
/// and lines that two cores have read are slow to write.
template <typename T>
class SlotRows {
 public:
  using A = Accumulator<T>;

  SlotRows(const HeadOf<const T>& from, const Slots& slots, int64_t stride)
      : from_(from),
        in_place_(slots.compact() || from.width != stride ? nullptr : from.matrix()),
        copy_(in_place_ || !from ? 0 : slots.count(), stride) {}

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

/// The same of one number a token, with the gradient of each.
template <typename T>
class SlotNumbers {
 public:
  using A = Accumulator<T>;

  explicit SlotNumbers(const Slots& slots) : values_(slots.count()), gradients_(slots.count()) {}

  void enter(const Entering& tokens, HeadOf<const T> from) {
    for (int64_t n = 0; n < tokens.count; ++n) {
      const int64_t i = tokens.token(n), slot = tokens.slots->of(i);
      values_[slot] = static_cast<A>(*from[i]);
      gradients_[slot] = 0;
    }
  }

  const A* data() const { return values_.data(); }

  /// Adds the gradients of what rows read, last row first; then those of the rows are complete.
  void take(const ReadsView& reads, const PerRead<A>& d_logits, const Slots& slots, HeadOf<T> out) {
    for (int64_t i = reads.end() - 1; out && i >= reads.begin(); --i) {
      const int32_t* at = reads.slots(i);
      const A* add = d_logits.at(reads, i);
      for (int64_t r = 0; r < reads.count(i); ++r) gradients_[at[r]] += add[r];
      *out[i] = static_cast<T>(gradients_[slots.of(i)]);
    }
  }

 private:
  std::vector<A> values_, gradients_;
};

}  // namespace hopmix::kernels

// The reads of some neighbouring rows, written out for the inner loops.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/rows/rows.h"
#include "hopmix/kernels/rows/slots.h"

namespace hopmix::kernels {

/// Row i in [begin, end) reads count(i) slots. Its reads, and what is computed for each of them,
/// start at a multiple of kPad, so that whole vectors can be stored. A view of some rows of Reads.
class ReadsView {
 public:
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  int64_t count(int64_t i) const { return counts_[i - base_]; }
  int64_t first(int64_t i) const { return firsts_[i - base_]; }
  /// The first element of each slot that is read: slot * stride.
  const int64_t* at(int64_t i) const { return at_ + first(i); }
  /// The slots themselves, for what is one number a slot; up to the next multiple of kPad the last.
  const int32_t* slots(int64_t i) const { return slots_ + first(i); }

  /// Rows [begin, end) of them.
  ReadsView part(int64_t begin, int64_t end) const {
    ReadsView some = *this;
    some.begin_ = begin;
    some.end_ = end;
    return some;
  }

 protected:
  int64_t begin_ = 0, end_ = 0, base_ = 0;  // base_: the row of counts_[0]
  const int64_t *counts_ = nullptr, *firsts_ = nullptr, *at_ = nullptr;
  const int32_t* slots_ = nullptr;
};

/// The reads of neighbouring rows with memory of its own.
class Reads : public ReadsView {
 public:
  Reads() = default;
  Reads(Reads&&) = default;  // moved vectors stay where they are
  Reads& operator=(Reads&&) = default;

  /// `stride`: elements from one slot to the next, in every buffer that is read. With `self` each
  /// row also reads its own token, last.
  void assign(const Rows& rows, const Slots& slots, int64_t stride, int64_t begin, int64_t end,
              bool self = false);

  /// Entries of an array with one number for each read.
  int64_t size() const { return first_of_.back(); }

 private:
  std::vector<int64_t> count_of_, first_of_, elements_;
  std::vector<int32_t> slot_of_;
  Csr made_;
};

/// Numbers, one for each read; grows and keeps its memory.
template <typename A>
class PerRead {
 public:
  void resize(int64_t size) {
    if (size > capacity_) {
      capacity_ = size + size / 4;
      buffer_ = Buffer<A>(capacity_);
    }
  }
  A* data() const { return buffer_.data(); }
  A* at(const ReadsView& reads, int64_t i) const { return buffer_.data() + reads.first(i); }

 private:
  int64_t capacity_ = 0;
  Buffer<A> buffer_;
};

}  // namespace hopmix::kernels

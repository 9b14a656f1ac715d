#include "hopmix/kernels/rows/reads.h"

#include <algorithm>

namespace hopmix::kernels {

void Reads::assign(const Rows& rows, const Slots& slots, int64_t stride, int64_t begin, int64_t end,
                   bool self) {
  begin_ = base_ = begin;
  end_ = end;
  const RowList list = rows.list(begin, end, made_);
  count_of_.resize(end - begin);
  first_of_.resize(end - begin + 1);
  first_of_[0] = 0;
  for (int64_t i = 0; i < end - begin; ++i) {
    count_of_[i] = list.row_ptr[i + 1] - list.row_ptr[i] + self;
    first_of_[i + 1] = first_of_[i] + padded(count_of_[i]);
  }
  elements_.resize(first_of_.back());
  slot_of_.resize(first_of_.back());
  const int32_t* table = slots.table();
  for (int64_t i = 0; i < end - begin; ++i) {
    const int32_t* from = list.cols + (list.row_ptr[i] - list.row_ptr[0]);
    int64_t* to = elements_.data() + first_of_[i];
    int32_t* slot = slot_of_.data() + first_of_[i];
    const int64_t listed = count_of_[i] - self;
    if (table == nullptr) {
      std::copy(from, from + listed, slot);
    } else {
      for (int64_t r = 0; r < listed; ++r) slot[r] = table[from[r]];
    }
    if (self) slot[listed] = slots.of(begin + i);
    // Behind the end, where whole vectors are loaded, a slot that is read anyway.
    if (count_of_[i] > 0) {
      std::fill(slot + count_of_[i], slot_of_.data() + first_of_[i + 1], slot[count_of_[i] - 1]);
    }
    for (int64_t r = 0; r < count_of_[i]; ++r) to[r] = slot[r] * stride;
  }
  counts_ = count_of_.data();
  firsts_ = first_of_.data();
  at_ = elements_.data();
  slots_ = slot_of_.data();
}

}  // namespace hopmix::kernels

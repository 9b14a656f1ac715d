#include "hopmix/kernels/reads.h"

#include <algorithm>

namespace hopmix::kernels {

void Reads::assign(const Rows& rows, const Slots& slots, int64_t stride, int64_t begin, int64_t end,
                   bool self) {
  begin_ = begin;
  end_ = end;
  const RowList list = rows.list(begin, end, made_);
  counts_.resize(end - begin);
  firsts_.resize(end - begin + 1);
  firsts_[0] = 0;
  for (int64_t i = 0; i < end - begin; ++i) {
    counts_[i] = list.row_ptr[i + 1] - list.row_ptr[i] + self;
    firsts_[i + 1] = firsts_[i] + padded(counts_[i]);
  }
  at_.resize(firsts_.back());
  slots_.resize(firsts_.back());
  const int32_t* table = slots.table();
  for (int64_t i = 0; i < end - begin; ++i) {
    const int32_t* from = list.cols + (list.row_ptr[i] - list.row_ptr[0]);
    int64_t* to = at_.data() + firsts_[i];
    int32_t* slot = slots_.data() + firsts_[i];
    const int64_t listed = counts_[i] - self;
    if (table == nullptr) {
      std::copy(from, from + listed, slot);
    } else {
      for (int64_t r = 0; r < listed; ++r) slot[r] = table[from[r]];
    }
    if (self) slot[listed] = slots.of(begin + i);
    for (int64_t r = 0; r < counts_[i]; ++r) to[r] = slot[r] * stride;
  }
}

}  // namespace hopmix::kernels

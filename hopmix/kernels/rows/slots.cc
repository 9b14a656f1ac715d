#include "hopmix/kernels/rows/slots.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace hopmix::kernels {
namespace {

// Copying tokens into a buffer that is not much smaller than the sequence gains nothing.
constexpr int64_t kWorthwhile = 4;

}  // namespace

Slots::Slots(const Rows& rows, int64_t length, int64_t block) : count_(length), length_(length) {
  if (!rows.inherits() || length < kWorthwhile * block) return;
  // The live cache before a block is its first row (Pattern::inherits).
  int64_t largest = 0;
  for (int64_t begin = 0; begin < length; begin += block) {
    const int64_t reads = static_cast<int64_t>(rows.row(begin, live_).size());
    largest = std::max(largest, reads);
    if ((largest + block) * kWorthwhile > length) break;
  }
  live_.clear();
  if ((largest + block) * kWorthwhile > length) return;
  compact_ = true;
  count_ = largest + block;
  slot_.assign(length, -1);
  free_.resize(count_);
  std::iota(free_.rbegin(), free_.rend(), 0);
}

void Slots::give(int64_t token) {
  slot_[token] = free_.back();
  free_.pop_back();
}

void Slots::take(int64_t token) {
  free_.push_back(slot_[token]);
  slot_[token] = -1;
}

void Slots::forward(const Rows& rows, int64_t begin, int64_t end) {
  if (!compact_) return;
  // live_ and then the block before, both ascending, hold the slots; the row of `begin` keeps its
  // share.
  if (begin_ >= 0) {
    for (int64_t token = begin_; token < end_; ++token)
      live_.push_back(static_cast<int32_t>(token));
  }
  const std::span<const int32_t> keep = rows.row(begin, next_);
  size_t k = 0;
  for (const int32_t token : live_) {
    if (k < keep.size() && keep[k] == token) {
      ++k;
    } else {
      take(token);
    }
  }
  live_.assign(keep.begin(), keep.end());
  for (int64_t token = begin; token < end; ++token) give(token);
  begin_ = begin;
  end_ = end;
}

void Slots::backward(const Rows& rows, int64_t begin, int64_t end) {
  entered_.clear();
  if (!compact_) {
    if (begin_ < 0) {
      entered_.resize(length_);
      std::iota(entered_.begin(), entered_.end(), 0);
    }
    begin_ = begin;
    return;
  }
  if (begin_ >= 0) {
    for (int64_t token = begin_; token < end_; ++token) take(token);
  }
  const std::span<const int32_t> row = rows.row(begin, next_);
  std::vector<int32_t>& wanted = entered_;
  wanted.assign(row.begin(), row.end());
  for (int64_t token = begin; token < end; ++token) wanted.push_back(static_cast<int32_t>(token));
  std::erase_if(wanted, [&](int32_t token) { return slot_[token] >= 0; });
  for (const int32_t token : wanted) give(token);
  begin_ = begin;
  end_ = end;
}

}  // namespace hopmix::kernels

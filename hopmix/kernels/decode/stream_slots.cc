#include "hopmix/kernels/decode/stream_slots.h"

#include <algorithm>
#include <limits>

#include "hopmix/base/error.h"

namespace hopmix::kernels {
namespace {

constexpr int64_t kFirstLength = 4096;

}  // namespace

StreamSlots::StreamSlots(const std::string& spec, int64_t length)
    : pattern_(spec, 1), inherits_(pattern_.inherits() && pattern_.spec() != "dense") {
  if (length == 0 && pattern_.most_tokens() < std::numeric_limits<int32_t>::max()) {
    length = pattern_.most_tokens();
  }
  if (length == 0) return;
  fixed_ = true;
  pattern_ = Pattern(pattern_.spec(), length);
  if (!inherits_) use_ = last_use(pattern_);
}

// Twice what is needed, so that a stream rebinds only log(n) times.
void StreamSlots::bind(int64_t i) {
  if (i < pattern_.size()) return;
  if (fixed_) {
    throw Error("pattern '" + pattern_.spec() + "': covers " + std::to_string(pattern_.size()) +
                " tokens; token " + std::to_string(i) + " is out of range");
  }
  pattern_ = Pattern(pattern_.spec(), std::max(kFirstLength, 2 * i));
}

const std::vector<int32_t>& StreamSlots::reads() {
  bind(position_);
  if (inherits_) {
    reads_ = held_at_;
    return reads_;
  }
  pattern_.row(position_, reads_);
  if (!use_.slot.empty()) {
    for (int32_t& read : reads_) read = use_.slot[read];
  }
  return reads_;
}

int32_t StreamSlots::advance() {
  bind(position_);
  const auto token = static_cast<int32_t>(position_++);
  if (!inherits_) {
    const int32_t slot = use_.slot.empty() ? token : use_.slot[token];
    count_ = use_.slot.empty() ? position_ : use_.used[position_];
    return slot;
  }
  if (fixed_ && position_ == pattern_.size()) {  // the last one
    next_.clear();
  } else {
    bind(position_);
    pattern_.row(position_, next_);
  }
  // No later token reads what is not in the next row. Both are ascending.
  size_t kept = 0, n = 0;
  for (size_t r = 0; r < held_.size(); ++r) {
    if (n < next_.size() && next_[n] == held_[r]) {
      ++n;
      held_[kept] = held_[r];
      held_at_[kept++] = held_at_[r];
    } else {
      free_.push_back(held_at_[r]);
    }
  }
  held_.resize(kept);
  held_at_.resize(kept);
  if (next_.empty() || next_.back() != token) return -1;
  if (free_.empty()) free_.push_back(static_cast<int32_t>(count_++));
  held_.push_back(token);
  held_at_.push_back(free_.back());
  free_.pop_back();
  return held_at_.back();
}

}  // namespace hopmix::kernels

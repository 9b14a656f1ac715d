#include "hopmix/pattern/slot_policy.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "hopmix/base/error.h"

namespace hopmix {
namespace {

constexpr int64_t kFirstLength = 4096;
constexpr int64_t kRowsAtOnce = 64;

int64_t count(const std::vector<int32_t>& row) { return static_cast<int64_t>(row.size()); }

}  // namespace

SlotPolicy::SlotPolicy(Pattern pattern, int64_t length) : pattern_(std::move(pattern)) {
  if (pattern_.is_dense()) return;  // all slots at once are faster than a list
  if (pattern_.inherits()) {
    kind_ = Kind::kNextRow;
    return;
  }
  if (length == 0 && pattern_.reads_file()) length = pattern_.most_tokens();
  if (length == 0) return;
  kind_ = Kind::kLifetimes;
  pattern_ = pattern_.on(length);
}

// Twice what is needed, so that a stream parses only log(n) times.
Pattern SlotPolicy::covering(int64_t i) const {
  if (i < pattern_.size()) return pattern_;
  check_length(i + 1);
  const int64_t wanted = std::max(kFirstLength, 2 * i);
  try {
    return pattern_.on(std::max(std::min(wanted, pattern_.most_tokens()), i + 1));
  } catch (const Error&) {  // it may still be a pattern on as many tokens as there are
    return pattern_.on(i + 1);
  }
}

void SlotPolicy::check_length(int64_t tokens) const {
  // Other patterns have no end, and parsing them for the longest text could waste memory.
  if (kind_ != Kind::kLifetimes || tokens <= pattern_.size()) return;
  throw Error("pattern '" + pattern_.spec() + "': covers " + std::to_string(pattern_.size()) +
              " tokens; token " + std::to_string(tokens - 1) + " is out of range");
}

const std::vector<int32_t>& SlotPolicy::row(int64_t i) {
  Row& row = rows_[i % 2];
  if (row.token != i) {
    if (i >= pattern_.size()) pattern_ = covering(i);
    row.token = -1;
    pattern_.row(i, row.cols);
    row.token = i;
  }
  return row.cols;
}

std::shared_ptr<const LastUse> SlotPolicy::lifetimes() const {
  return lifetimes_ ? lifetimes_ : std::make_shared<const LastUse>(last_use(pattern_));
}

int32_t SlotPolicy::slot_of(int64_t token) {
  if (kind_ != Kind::kLifetimes) return static_cast<int32_t>(token);
  check_length(token + 1);
  lifetimes_ = lifetimes();
  return lifetimes_->slot[token];
}

int64_t SlotPolicy::used(int64_t t) {
  if (kind_ == Kind::kAll) return t;
  if (kind_ == Kind::kNextRow) return count(row(t));
  lifetimes_ = lifetimes();
  return lifetimes_->used[std::min(t, pattern_.size())];
}

SlotPolicy::Change SlotPolicy::store(int64_t i, const int32_t* held) {
  Change change;
  if (kind_ != Kind::kNextRow) {
    change.slot = slot_of(i);
    return change;
  }
  const std::vector<int32_t>&now = row(i), &next = row(i + 1);
  const bool kept = !next.empty() && next.back() == i;
  int32_t live = static_cast<int32_t>(now.size());
  if (!kept && count(next) == live) return change;
  std::vector<int32_t> dropped, &freed = change.freed;
  std::set_difference(now.begin(), now.end(), next.begin(), next.end(),
                      std::back_inserter(dropped));
  for (const int32_t j : dropped) {
    freed.push_back(static_cast<int32_t>(std::find(held, held + live, j) - held));
  }
  std::sort(freed.begin(), freed.end());
  size_t first = 0;  // of the slots that stay free
  if (kept) change.slot = freed.empty() ? live++ : freed[first++];
  // The last entries move into free slots, so that the used slots are the first.
  for (size_t last = freed.size(); last > first; --last) {
    if (freed[last - 1] != --live) change.moves.emplace_back(live, freed[last - 1]);
  }
  return change;
}

int64_t SlotPolicy::room(int64_t used) const {
  if (kind_ == Kind::kNextRow) return used;
  const auto next = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(used)));
  const int64_t unit = std::max<int64_t>(1, next / 8);
  const int64_t rounded = (used + unit - 1) / unit * unit;
  return kind_ == Kind::kAll ? rounded : std::min<int64_t>(rounded, lifetimes()->used.back());
}

int64_t SlotPolicy::slots(int64_t t) const {
  if (kind_ == Kind::kAll) return room(t);
  if (kind_ == Kind::kNextRow) return largest_row(0, t + 1);
  return room(lifetimes()->used[std::min(t, pattern_.size())]);
}

int64_t SlotPolicy::largest_row(int64_t begin, int64_t end) const {
  int64_t most = 0;
  Csr rows;
  const Pattern pattern = covering(end - 1);
  for (int64_t i = begin; i < end; i += kRowsAtOnce) {
    const int64_t last = std::min(i + kRowsAtOnce, end);
    pattern.rows(i, last, rows);
    for (int64_t r = 0; r < rows.rows(); ++r) {
      most = std::max(most, rows.row_ptr[r + 1] - rows.row_ptr[r]);
    }
  }
  return most;
}

}  // namespace hopmix

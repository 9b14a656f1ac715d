#include "hopmix/nn/past.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "hopmix/base/error.h"

namespace hopmix::nn {
namespace {

constexpr int64_t kFirstLength = 4096;
constexpr int64_t kRowsAtOnce = 64;
constexpr const char* kTokens = "tokens";

// Room for `slots` tokens, `used` of them occupied.
void grow(Tensor& tensor, int64_t slots, int64_t used) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[1] = slots;
  const Tensor wider = torch::zeros(sizes, tensor.options());
  wider.narrow(1, 0, used).copy_(tensor.narrow(1, 0, used));
  tensor = wider;
}

Tensor select_tokens(const Tensor& rows, const std::vector<int32_t>& index) {
  const Tensor at = torch::from_blob(const_cast<int32_t*>(index.data()),
                                     {static_cast<int64_t>(index.size())}, torch::kInt32);
  return rows.index_select(1, at.to(rows.device()));
}

int64_t count(const std::vector<int32_t>& row) { return static_cast<int64_t>(row.size()); }

}  // namespace

Past::Past(const std::string& spec, int64_t length)
    : pattern_(spec, 1), dense_(pattern_.is_dense()), inherits_(pattern_.inherits()) {
  if (dense_) inherits_ = false;  // a view of everything is faster than slots
  if (dense_ || inherits_) return;
  if (length == 0 && pattern_.most_tokens() < std::numeric_limits<int32_t>::max()) {
    length = pattern_.most_tokens();
  }
  if (length == 0) return;
  fixed_ = true;
  pattern_ = Pattern(pattern_.spec(), length);
}

const LastUse& Past::use() const {
  if (use_.used.empty()) use_ = last_use(pattern_);
  return use_;
}

void Past::bind(int64_t i) const {
  if (i < pattern_.size()) return;
  // Twice what is needed, so that a stream rebinds only log(n) times.
  const int64_t wanted = std::max(kFirstLength, 2 * i);
  if (!fixed())
    pattern_ = Pattern(pattern_.spec(), std::max(std::min(wanted, pattern_.most_tokens()), i + 1));
  if (i < pattern_.size()) return;
  throw Error("pattern '" + pattern_.spec() + "': covers " + std::to_string(pattern_.size()) +
              " tokens; token " + std::to_string(i) + " is out of range");
}

int64_t Past::slot_of(int64_t token) const {
  return fixed() ? use().slot[static_cast<size_t>(token)] : token;
}

void Past::check_length(int64_t tokens) const {
  // Other patterns have no end, and binding them to the longest possible text could waste memory.
  if (fixed()) bind(tokens - 1);
}

void Past::check_step(int64_t position) const { bind(inherits() ? position + 1 : position); }

bool Past::names_tokens(const std::string& name) const { return inherits() && name == kTokens; }

void Past::check_tokens(const State& state) const {
  if (!inherits()) return;
  const std::vector<int32_t>& reads = row(state.position);
  const auto found = state.tensors.find(kTokens);
  if (found == state.tensors.end()) {
    if (reads.empty()) return;
    throw Error(std::string("tensor '") + kTokens + "' is missing");
  }
  const Tensor& tokens = found->second;
  std::vector<int32_t> held;
  if (tokens.scalar_type() == torch::kInt32 && tokens.dim() == 2 && tokens.size(0) == 1 &&
      tokens.size(1) >= count(reads)) {
    const auto* first = tokens.const_data_ptr<int32_t>();
    held.assign(first, first + reads.size());
    std::sort(held.begin(), held.end());
    if (held == reads) return;
  }
  throw Error(std::string("tensor '") + kTokens + "' must name the tokens that token " +
              std::to_string(state.position) + " reads");
}

const std::vector<int32_t>& Past::row(int64_t i) const {
  Row& row = rows_[static_cast<size_t>(i % 2)];
  if (row.token != i) {
    bind(i);
    row.token = -1;
    pattern_.row(i, row.cols);
    row.token = i;
  }
  return row.cols;
}

int64_t Past::held(int64_t t) const {
  if (fixed()) return use().used[static_cast<size_t>(std::min(t, pattern_.size()))];
  return inherits() ? count(row(t)) : t;
}

int64_t Past::largest_row(int64_t begin, int64_t end) const {
  int64_t most = 0;
  Csr rows;
  for (int64_t i = begin; i < end; i += kRowsAtOnce) {
    const int64_t last = std::min(i + kRowsAtOnce, end);
    bind(last - 1);
    pattern_.rows(i, last, rows);
    for (int64_t r = 0; r < rows.rows(); ++r) {
      most = std::max(most, rows.row_ptr[r + 1] - rows.row_ptr[r]);
    }
  }
  return most;
}

int64_t Past::slots(int64_t t) const {
  if (!inherits()) {
    const int64_t needed = held(t);
    const auto next = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(needed)));
    const int64_t unit = std::max<int64_t>(1, next / 8);
    const int64_t rounded = (needed + unit - 1) / unit * unit;
    return fixed() ? std::min<int64_t>(rounded, use().used.back()) : rounded;
  }
  for (; scanned_ <= t; scanned_ = std::min(scanned_ + kRowsAtOnce, t + 1)) {
    const int64_t end = std::min(scanned_ + kRowsAtOnce, t + 1);
    if (largest_row(scanned_, end) <= static_cast<int64_t>(reached_.size())) continue;
    for (int64_t i = scanned_; i < end; ++i) {  // a row grows by at most one token
      if (count(row(i)) > static_cast<int64_t>(reached_.size())) reached_.push_back(i);
    }
  }
  return std::upper_bound(reached_.begin(), reached_.end(), t) - reached_.begin();
}

int64_t Past::bytes(int64_t t, int64_t a_token) const {
  const int64_t name = inherits() ? static_cast<int64_t>(sizeof(int32_t)) : 0;
  return slots(t) * (a_token + name);
}

std::optional<Tensor> Past::slots_read(const State& state) const {
  if (inherits() || dense_) return {};
  const std::vector<int32_t>& reads = row(state.position);
  Tensor slots = torch::empty({count(reads)}, torch::kInt32);
  auto* to = slots.mutable_data_ptr<int32_t>();
  for (const int32_t j : reads) *to++ = static_cast<int32_t>(slot_of(j));
  return slots;
}

Tensor Past::read(const State& state, const std::string& name) const {
  if (inherits() || dense_) return held_rows(state, name);
  return state.tensors.at(name).index_select(1, *slots_read(state));
}

Tensor Past::held_rows(const State& state, const std::string& name) const {
  return state.tensors.at(name).narrow(1, 0, held(state.position));
}

std::vector<int32_t> Past::tokens(const State& state) const {
  const std::vector<int32_t>& reads = row(state.position);
  if (!inherits() || reads.empty()) return reads;
  const auto* held = state.tensors.at(kTokens).const_data_ptr<int32_t>();
  return {held, held + reads.size()};
}

void Past::append(State& state, const Entries& entries) const {
  if (inherits()) return append_to_slots(state, entries);
  const int64_t i = state.position;
  bind(i);
  const int64_t slot = slot_of(i), there = held(i);
  if (slot < 0) return;
  const torch::NoGradGuard no_grad;
  for (const auto& [name, value] : entries) {
    Tensor& kept = state.tensors.at(name);
    if (slot < kept.size(1)) {
      make_own(kept);
    } else {
      grow(kept, slots(i + 1), there);
    }
    kept.select(1, slot).copy_(value);
  }
}

void Past::append_to_slots(State& state, const Entries& entries) const {
  const auto i = static_cast<int32_t>(state.position);
  const std::vector<int32_t>&now = row(i), &next = row(i + 1);
  const bool kept = !next.empty() && next.back() == i;
  int64_t live = count(now);
  if (!kept && count(next) == live) return;
  const torch::NoGradGuard no_grad;
  Tensor& tokens = state.tensors[kTokens];
  if (!tokens.defined()) tokens = torch::empty({entries[0].second.size(0), 0}, torch::kInt32);
  make_own(tokens);

  std::vector<int32_t> dropped;
  std::set_difference(now.begin(), now.end(), next.begin(), next.end(),
                      std::back_inserter(dropped));
  std::vector<int64_t> free;
  const auto* held = tokens.const_data_ptr<int32_t>();
  for (const int32_t j : dropped) free.push_back(std::find(held, held + live, j) - held);
  std::sort(free.begin(), free.end());

  int64_t slot = -1;  // of the new token
  if (kept) {
    slot = free.empty() ? live++ : free.front();
    if (!free.empty()) free.erase(free.begin());
    if (slot == tokens.size(1)) {
      grow(tokens, slot + 1, slot);
      for (const auto& [name, value] : entries) grow(state.tensors.at(name), slot + 1, slot);
    }
    tokens.select(1, slot).fill_(i);
  }
  // Move the last entries into free slots, so that all are contiguous.
  std::vector<std::pair<int64_t, int64_t>> moves;
  for (; !free.empty(); free.pop_back()) {
    if (free.back() != --live) moves.emplace_back(live, free.back());
  }
  const auto move = [&moves](const Tensor& rows) {
    for (const auto& [from, to] : moves) rows.select(1, to).copy_(rows.select(1, from));
  };
  move(tokens);
  for (const auto& [name, value] : entries) {
    Tensor& rows = state.tensors.at(name);
    make_own(rows);
    if (slot >= 0) rows.select(1, slot).copy_(value);
    move(rows);
  }
}

void Past::extend(State& state, const Entries& entries) const {
  const int64_t t = state.position, time = entries[0].second.size(1);
  const torch::NoGradGuard no_grad;
  if (!inherits()) {
    bind(t + time - 1);
    const int64_t there = held(t), after = held(t + time);
    for (const auto& [name, value] : entries) {
      Tensor& kept = state.tensors.at(name);
      if (after <= kept.size(1)) {
        make_own(kept);
      } else {
        grow(kept, slots(t + time), there);
      }
      if (!fixed()) {
        kept.narrow(1, t, time).copy_(value);
        continue;
      }
      for (int64_t j = 0; j < time; ++j) {  // in order: a token may free a slot
        if (slot_of(t + j) >= 0) kept.select(1, slot_of(t + j)).copy_(value.select(1, j));
      }
    }
    return;
  }
  std::vector<std::pair<int32_t, int32_t>> at;  // slots of held tokens
  for (const int32_t j : tokens(state)) {
    at.emplace_back(j, static_cast<int32_t>(at.size()));
  }
  std::sort(at.begin(), at.end());
  const std::vector<int32_t> next = row(t + time);
  std::vector<int32_t> old, added;
  for (const int32_t j : next) {
    if (j >= t) {
      added.push_back(static_cast<int32_t>(j - t));
    } else {
      old.push_back(std::lower_bound(at.begin(), at.end(), std::pair(j, 0))->second);
    }
  }
  const int64_t before = state.tensors.at(entries[0].first).size(1);
  const int64_t slots = std::max(before, largest_row(t + 1, t + time + 1));
  for (const auto& [name, value] : entries) {
    Tensor& rows = state.tensors.at(name);
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[1] = slots;
    const Tensor all = torch::zeros(sizes, rows.options());
    all.narrow(1, 0, count(old)).copy_(select_tokens(rows, old));
    all.narrow(1, count(old), count(added)).copy_(select_tokens(value, added));
    rows = all;
  }
  const Tensor tokens = torch::zeros({entries[0].second.size(0), slots}, torch::kInt32);
  tokens.narrow(1, 0, count(next)).copy_(torch::tensor(next, torch::kInt32));
  state.tensors[kTokens] = tokens;
}

std::pair<Tensor, Tensor> Past::joined_rows(const State& state, int64_t time) const {
  const int64_t t = state.position, behind = held(t);
  std::vector<std::pair<int32_t, int32_t>> at;
  if (inherits()) {
    for (const int32_t j : tokens(state)) {
      at.emplace_back(j, static_cast<int32_t>(at.size()));
    }
    std::sort(at.begin(), at.end());
  }
  const auto place = [&](int32_t j) -> int32_t {
    if (j >= t) return static_cast<int32_t>(behind + j - t);
    if (!inherits()) return static_cast<int32_t>(slot_of(j));
    return std::lower_bound(at.begin(), at.end(), std::pair(j, 0))->second;
  };
  std::vector<int64_t> row_ptr(static_cast<size_t>(behind + 1), 0);
  std::vector<int32_t> cols;
  for (int64_t i = t; i < t + time; ++i) {
    const auto begin = static_cast<std::ptrdiff_t>(cols.size());
    for (const int32_t j : row(i)) cols.push_back(place(j));
    std::sort(cols.begin() + begin, cols.end());
    row_ptr.push_back(static_cast<int64_t>(cols.size()));
  }
  return {torch::tensor(row_ptr, torch::kInt64), torch::tensor(cols, torch::kInt32)};
}

void Past::fill(State& state, int64_t t) const {
  int64_t batch = 1;
  for (auto& [name, rows] : state.tensors) {
    if (rows.dim() < 2 || rows.size(1) != 0) continue;
    batch = rows.size(0);
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[1] = slots(t);
    rows = rows.is_floating_point()
               ? torch::randn(sizes, rows.options())
               : torch::randint(std::max<int64_t>(t, 1), sizes, rows.options());
  }
  if (inherits()) {
    const Tensor tokens = torch::zeros({batch, slots(t)}, torch::kInt32);
    const std::vector<int32_t>& next = row(t);
    tokens.narrow(1, 0, count(next)).copy_(torch::tensor(next, torch::kInt32));
    state.tensors[kTokens] = tokens;
  }
  state.position = t;
}

}  // namespace hopmix::nn

#include "hopmix/nn/pattern_cache.h"

#include <algorithm>

#include "hopmix/base/error.h"

namespace hopmix::nn {
namespace {

constexpr const char* kTokens = "tokens";

// Zeros of the same type, with `slots` slots.
Tensor with_slots(const Tensor& tensor, int64_t slots) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[1] = slots;
  return torch::zeros(sizes, tensor.options());
}

// Makes room for `slots` tokens, if there is none, and memory that is written to its own.
void make_room(Tensor& tensor, int64_t slots) {
  if (slots <= tensor.size(1)) return make_own(tensor);
  const Tensor wider = with_slots(tensor, slots);
  wider.narrow(1, 0, tensor.size(1)).copy_(tensor);
  tensor = wider;
}

Tensor select_tokens(const Tensor& rows, const std::vector<int32_t>& index) {
  const Tensor at = torch::from_blob(const_cast<int32_t*>(index.data()),
                                     {static_cast<int64_t>(index.size())}, torch::kInt32);
  return rows.index_select(1, at.to(rows.device()));
}

int64_t count(const std::vector<int32_t>& row) { return static_cast<int64_t>(row.size()); }

}  // namespace

StateParts PatternCache::state() const {
  StateParts parts;
  for (const auto& [name, part] : entries_) {
    StatePart& empty = parts[name] = part;
    empty.sizes.insert(empty.sizes.begin(), 0);
  }
  return parts;
}

bool PatternCache::names_tokens(const std::string& name) const {
  return holds_next_row() && name == kTokens;
}

void PatternCache::check_tokens(const State& state) const {
  if (!holds_next_row()) return;
  SlotPolicy slots = slots_;
  const std::vector<int32_t>& reads = slots.row(state.position);
  const auto found = state.tensors.find(kTokens);
  if (found == state.tensors.end()) {
    if (reads.empty()) return;
    throw Error(std::string("tensor '") + kTokens + "' is missing");
  }
  const Tensor& tokens = found->second;
  if (tokens.scalar_type() == torch::kInt32 && tokens.dim() == 2 && tokens.size(0) == 1 &&
      tokens.size(1) >= count(reads)) {
    const auto* first = tokens.const_data_ptr<int32_t>();
    std::vector<int32_t> held(first, first + reads.size());
    std::sort(held.begin(), held.end());
    if (held == reads) return;
  }
  throw Error(std::string("tensor '") + kTokens + "' must name the tokens that token " +
              std::to_string(state.position) + " reads");
}

int64_t PatternCache::bytes(int64_t t, const torch::TensorOptions& parameters) const {
  int64_t a_token = holds_next_row() ? sizeof(int32_t) : 0;
  for (const Entry& entry : entries_) {
    const auto options = state_options(parameters, entry.part.type);
    a_token +=
        c10::multiply_integers(entry.part.sizes) * static_cast<int64_t>(options.dtype().itemsize());
  }
  return slots_.slots(t) * a_token;
}

std::optional<Tensor> PatternCache::slots_read(const State& state) {
  if (holds_next_row() || pattern().is_dense()) return {};
  const std::vector<int32_t>& reads = slots_.row(state.position);
  Tensor slots = torch::empty({count(reads)}, torch::kInt32);
  auto* to = slots.mutable_data_ptr<int32_t>();
  for (const int32_t j : reads) *to++ = slots_.slot_of(j);
  return slots;
}

Tensor PatternCache::read(const State& state, const std::string& name) {
  const std::optional<Tensor> slots = slots_read(state);
  return slots ? state.tensors.at(name).index_select(1, *slots) : held_rows(state, name);
}

Tensor PatternCache::held_rows(const State& state, const std::string& name) {
  return state.tensors.at(name).narrow(1, 0, held(state.position));
}

std::vector<int32_t> PatternCache::tokens(const State& state) {
  const std::vector<int32_t>& reads = slots_.row(state.position);
  if (!holds_next_row() || reads.empty()) return reads;
  const auto* held = state.tensors.at(kTokens).const_data_ptr<int32_t>();
  return {held, held + reads.size()};
}

// Tokens, ascending, and their slots.
std::vector<std::pair<int32_t, int32_t>> PatternCache::held_tokens(const State& state) {
  std::vector<std::pair<int32_t, int32_t>> at;
  for (const int32_t j : tokens(state)) at.emplace_back(j, static_cast<int32_t>(at.size()));
  std::sort(at.begin(), at.end());
  return at;
}

void PatternCache::set_tokens(State& state, int64_t batch, int64_t slots,
                              const std::vector<int32_t>& row) {
  const Tensor tokens = torch::zeros({batch, slots}, torch::kInt32);
  tokens.narrow(1, 0, count(row)).copy_(torch::tensor(row, torch::kInt32));
  state.tensors[kTokens] = tokens;
}

void PatternCache::append(State& state, const std::vector<Tensor>& values, size_t first) {
  const torch::NoGradGuard no_grad;
  const int64_t i = state.position;
  const auto held = state.tensors.find(kTokens);
  const bool none = held == state.tensors.end();
  const SlotPolicy::Change change =
      slots_.store(i, none ? nullptr : held->second.const_data_ptr<int32_t>());
  if (change.slot < 0 && change.moves.empty()) return;
  const auto write = [&](Tensor& rows, const auto& value) {
    make_room(rows, change.slot < rows.size(1) ? 0 : slots_.room(slots_.used(i + 1)));
    if (change.slot >= 0) value(rows.select(1, change.slot));
    for (const auto& [from, to] : change.moves) rows.select(1, to).copy_(rows.select(1, from));
  };
  if (holds_next_row()) {
    if (none) state.tensors[kTokens] = torch::empty({values[0].size(0), 0}, torch::kInt32);
    write(state.tensors[kTokens], [&](const Tensor& token) { token.fill_(i); });
  }
  for (size_t e = 0; e < values.size(); ++e) {
    write(state.tensors.at(entries_[first + e].name),
          [&](const Tensor& row) { row.copy_(values[e].select(1, 0)); });
  }
}

void PatternCache::extend(State& state, const std::vector<Tensor>& values) {
  const int64_t t = state.position, time = values[0].size(1);
  const torch::NoGradGuard no_grad;
  slots_.check_length(t + time);
  if (!holds_next_row()) {
    const int64_t used = slots_.used(t + time);
    for (size_t e = 0; e < values.size(); ++e) {
      Tensor& kept = state.tensors.at(entries_[e].name);
      make_room(kept, used <= kept.size(1) ? 0 : slots_.room(used));
      if (slots_.kind() == SlotPolicy::Kind::kAll) {
        kept.narrow(1, t, time).copy_(values[e]);
        continue;
      }
      for (int64_t j = 0; j < time; ++j) {  // in order: a token may free a slot
        const int32_t slot = slots_.slot_of(t + j);
        if (slot >= 0) kept.select(1, slot).copy_(values[e].select(1, j));
      }
    }
    return;
  }
  const std::vector<std::pair<int32_t, int32_t>> at = held_tokens(state);
  const std::vector<int32_t> next = slots_.row(t + time);
  std::vector<int32_t> old, added;
  for (const int32_t j : next) {
    if (j >= t) {
      added.push_back(static_cast<int32_t>(j - t));
    } else {
      old.push_back(std::lower_bound(at.begin(), at.end(), std::pair(j, 0))->second);
    }
  }
  const int64_t before = state.tensors.at(entries_[0].name).size(1);
  const int64_t slots = std::max(before, slots_.largest_row(t + 1, t + time + 1));
  for (size_t e = 0; e < values.size(); ++e) {
    Tensor& rows = state.tensors.at(entries_[e].name);
    const Tensor all = with_slots(rows, slots);
    all.narrow(1, 0, count(old)).copy_(select_tokens(rows, old));
    all.narrow(1, count(old), count(added)).copy_(select_tokens(values[e], added));
    rows = all;
  }
  set_tokens(state, values[0].size(0), slots, next);
}

std::pair<Tensor, Tensor> PatternCache::joined_rows(const State& state, int64_t time) {
  const int64_t t = state.position, behind = held(t);
  std::vector<std::pair<int32_t, int32_t>> at;
  if (holds_next_row()) at = held_tokens(state);
  const auto place = [&](int32_t j) -> int32_t {
    if (j >= t) return static_cast<int32_t>(behind + j - t);
    if (!holds_next_row()) return slots_.slot_of(j);
    return std::lower_bound(at.begin(), at.end(), std::pair(j, 0))->second;
  };
  std::vector<int64_t> row_ptr(static_cast<size_t>(behind + 1), 0);
  std::vector<int32_t> cols;
  for (int64_t i = t; i < t + time; ++i) {
    const auto begin = static_cast<std::ptrdiff_t>(cols.size());
    for (const int32_t j : slots_.row(i)) cols.push_back(place(j));
    std::sort(cols.begin() + begin, cols.end());
    row_ptr.push_back(static_cast<int64_t>(cols.size()));
  }
  return {torch::tensor(row_ptr, torch::kInt64), torch::tensor(cols, torch::kInt32)};
}

void PatternCache::fill(State& state, int64_t t) {
  int64_t batch = 1;
  const int64_t slots = slots_.slots(t);
  for (auto& [name, rows] : state.tensors) {
    if (rows.dim() < 2 || rows.size(1) != 0) continue;
    batch = rows.size(0);
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[1] = slots;
    rows = rows.is_floating_point()
               ? torch::randn(sizes, rows.options())
               : torch::randint(std::max<int64_t>(t, 1), sizes, rows.options());
  }
  if (holds_next_row()) set_tokens(state, batch, slots, slots_.row(t));
  state.position = t;
}

}  // namespace hopmix::nn

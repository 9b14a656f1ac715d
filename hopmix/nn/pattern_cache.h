// The entries of past tokens that a pattern still reads, stored token by token while decoding.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hopmix/nn/mixer.h"
#include "hopmix/pattern/slot_policy.h"

namespace hopmix::nn {

/// Stores entries of tokens in tensors of a State, [B,slots,...], in the slots of a SlotPolicy. If
/// that holds the next row, one more tensor, "tokens" (int32 [B,slots]), says which token each slot
/// holds. If a fork or a view shares a state's memory, it is copied before a write.
class PatternCache {
 public:
  /// What it stores of each token.
  struct Entry {
    std::string name;
    StatePart part;
  };

  /// `length`: of the stream, if it is known (pattern/slot_policy.h).
  PatternCache(Pattern pattern, std::vector<Entry> entries, int64_t length = 0)
      : slots_(std::move(pattern), length), entries_(std::move(entries)) {}

  const Pattern& pattern() const { return slots_.pattern(); }
  const std::string& name(size_t entry) const { return entries_[entry].name; }
  /// Its part of a state.
  StateParts state() const;

  /// Throws Error if the pattern does not cover this many tokens.
  void check_length(int64_t tokens) const { slots_.check_length(tokens); }

  /// Throws Error if a token at this position cannot be appended. Quick.
  void check_step(int64_t position) const { slots_.check_step(position); }

  /// Whether it keeps the tensor `name` by itself, besides the entries.
  bool names_tokens(const std::string& name) const;

  /// Throws Error unless the state, of one sequence, names exactly the tokens that token
  /// `state.position` reads.
  void check_tokens(const State& state) const;

  /// The number of slots allocated after t tokens that were stored one by one.
  int64_t slots(int64_t t) const { return slots_.slots(t); }

  /// The rows of an entry that token `state.position` reads: [B,reads,...], in the order of
  /// `tokens`. A view of the state if possible; release it before the next append.
  Tensor read(const State& state, const std::string& name);

  /// The tokens that token `state.position` reads, in the order of `read`.
  std::vector<int32_t> tokens(const State& state);

  /// Adds token `state.position`'s entries from `first` on, each [B,1,...], and drops what no later
  /// token reads. Call it after the reads, then advance the position. O(reads).
  void append(State& state, const std::vector<Tensor>& values, size_t first = 0);

  /// The same for the next T tokens at once: all entries, each [B,T,...].
  void extend(State& state, const std::vector<Tensor>& values);

  /// The slots that token `state.position` reads, int32 [reads], as `attention_step` takes them;
  /// none if it reads all that is held.
  std::optional<Tensor> slots_read(const State& state);

  /// Everything held, [B,held,...], oldest first only if everything was kept. If the length is
  /// known, this includes slots whose token no later token reads.
  Tensor held_rows(const State& state, const std::string& name);

  /// For an operator on held_rows followed by `time` new tokens: what the new tokens read, int64
  /// row_ptr [held + time + 1] and int32 cols. Rows of held tokens are empty.
  std::pair<Tensor, Tensor> joined_rows(const State& state, int64_t time);

  /// The number of held rows after t tokens.
  int64_t held(int64_t t) { return slots_.used(t); }

  /// Bytes stored for one sequence after t tokens, given the parameters' options.
  int64_t bytes(int64_t t, const torch::TensorOptions& parameters) const;

  /// Turns a fresh state into one after t tokens with random entries, to measure at a length
  /// without reading a text: fills every tensor that has no tokens, [B,0,...].
  void fill(State& state, int64_t t);

 private:
  bool holds_next_row() const { return slots_.kind() == SlotPolicy::Kind::kNextRow; }
  std::vector<std::pair<int32_t, int32_t>> held_tokens(const State& state);
  void set_tokens(State& state, int64_t batch, int64_t slots, const std::vector<int32_t>& row);

  SlotPolicy slots_;
  std::vector<Entry> entries_;
};

}  // namespace hopmix::nn

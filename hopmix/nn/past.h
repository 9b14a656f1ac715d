// The part of the past that a pattern still reads, stored token by token while decoding.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hopmix/nn/mixer.h"
#include "hopmix/pattern/last_use.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix::nn {

/// Stores per-token tensors of a State, [B,slots,...], for the tokens that some later token reads.
///
/// For patterns whose rows inherit (window, cached(f), ...), stores exactly the next token's row,
/// in the first of as many slots as the largest row so far had tokens: a token that no later one
/// reads frees its slot for the next. One more tensor, "tokens" (int32 [B,slots]), says which token
/// each slot holds. If the length of the pattern is known, a token keeps a slot until its last
/// reader (pattern/last_use.h). For `dense`, and other patterns that do not inherit, any token may
/// be read again, so token j stays in slot j. In these two cases, capacity grows by eighths of a
/// power of two.
///
/// If a fork or a view shares a state's memory, it is copied before a write.
class Past {
 public:
  using Entries = std::vector<std::pair<std::string, Tensor>>;

  /// The length of a pattern is known if `length` is given (0: unknown) or, for a dag, from its
  /// file. Throws Error on a malformed spec.
  explicit Past(const std::string& spec, int64_t length = 0);

  const std::string& spec() const { return pattern_.spec(); }
  bool is_dense() const { return dense_; }

  /// The rows of `tensors` that token `state.position` reads: [B,reads,...], in the order of
  /// `tokens`. A view of the state if possible; release it before the next append.
  Tensor read(const State& state, const std::string& name) const;

  /// Throws Error if the pattern does not cover this many tokens.
  void check_length(int64_t tokens) const;

  /// Throws Error if a token at this position cannot be appended. Cheap.
  void check_step(int64_t position) const;

  /// Whether it keeps the tensor `name` by itself, besides the entries.
  bool names_tokens(const std::string& name) const;

  /// Throws Error unless the state, of one sequence, names exactly the tokens that token
  /// `state.position` reads.
  void check_tokens(const State& state) const;

  /// The tokens that token `state.position` reads, in the order of `read`.
  std::vector<int32_t> tokens(const State& state) const;

  /// Adds token `state.position`'s entries, each [B,...], and drops what no later token reads. Call
  /// it after the reads, then advance the position. O(reads).
  void append(State& state, const Entries& entries) const;

  /// The same for the next T tokens at once, entries [B,T,...].
  void extend(State& state, const Entries& entries) const;

  /// The slots that token `state.position` reads, int32 [reads], as `attention_step` takes them;
  /// none if it reads all that is held.
  std::optional<Tensor> slots_read(const State& state) const;

  /// Everything held, [B,held,...], oldest first only if everything was kept. If the length is
  /// known, this includes slots whose token no later token reads.
  Tensor held_rows(const State& state, const std::string& name) const;

  /// For an operator on held_rows followed by `time` new tokens: what the new tokens read, int64
  /// row_ptr [held + time + 1] and int32 cols. Rows of held tokens are empty.
  std::pair<Tensor, Tensor> joined_rows(const State& state, int64_t time) const;

  /// What token i reads, ascending; valid until the row after the next one is requested.
  const std::vector<int32_t>& row(int64_t i) const;

  /// The number of held rows after t tokens, and the number of slots allocated for them.
  int64_t held(int64_t t) const;
  int64_t slots(int64_t t) const;

  /// Bytes stored after t tokens, with entries of `a_token` bytes.
  int64_t bytes(int64_t t, int64_t a_token) const;

  /// Turns a fresh state into one after t tokens with random entries, to measure at a length
  /// without reading a text: fills every tensor that has no tokens, [B,0,...].
  void fill(State& state, int64_t t) const;

 private:
  struct Row {
    int64_t token = -1;
    std::vector<int32_t> cols;
  };

  // What is held: the next row, every token with a future reader, or everything.
  bool inherits() const { return inherits_; }
  bool fixed() const { return fixed_; }
  const LastUse& use() const;            // computed on first use, which training never needs
  int64_t slot_of(int64_t token) const;  // if it does not inherit; -1: none
  void bind(int64_t i) const;
  void append_to_slots(State& state, const Entries& entries) const;
  int64_t largest_row(int64_t begin, int64_t end) const;

  mutable Pattern pattern_;  // rebound to more tokens as positions grow
  bool dense_, inherits_, fixed_ = false;
  mutable LastUse use_;                   // for a pattern of known length
  mutable std::array<Row, 2> rows_;       // the last two requested, by parity
  mutable std::vector<int64_t> reached_;  // reached_[m]: the first row of more than m tokens
  mutable int64_t scanned_ = 0;           // number of rows covered by reached_
};

}  // namespace hopmix::nn

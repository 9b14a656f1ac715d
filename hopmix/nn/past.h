// The part of the past that a pattern still reads, kept token by token while decoding.
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

/// Keeps per-token tensors of a State, [B,slots,...], for the tokens that some later token reads.
///
/// Patterns whose rows inherit (window, cached(f), ...) hold exactly the next token's row, in the
/// first of as many slots as the largest row so far had tokens: a token that nobody reads any more
/// leaves its slot to the next one. Which token lies where is one more tensor, "tokens" (int32
/// [B,slots]). Of a pattern whose length is known, a token has a slot until its last reader
/// (pattern/last_use.h). Of `dense`, and of other patterns that do not inherit, any token may be
/// read again: token j stays in slot j. In these two, slots are added by the eighth of a power of
/// two.
///
/// A state whose memory something else refers to, a fork of it or a view, is copied before it is
/// written to.
class Past {
 public:
  using Entries = std::vector<std::pair<std::string, Tensor>>;

  /// A pattern's length is known where `length` is given (0: it has none), and of dag, from its
  /// file. Throws Error on a malformed spec.
  explicit Past(const std::string& spec, int64_t length = 0);

  const std::string& spec() const { return pattern_.spec(); }
  bool is_dense() const { return dense_; }

  /// `tensors` as their rows read by token `state.position`: [B,reads,...] in the order of
  /// `tokens`. A view of the state where it can be: let go of it before the next append.
  Tensor read(const State& state, const std::string& name) const;

  /// Throws Error where the pattern has no row for each of so many tokens.
  void check_length(int64_t tokens) const;

  /// The tokens that token `state.position` reads, as `read` gives them.
  std::vector<int32_t> tokens(const State& state) const;

  /// Adds token `state.position`'s entries, each [B,...], and drops what no later token reads. Call
  /// it after the reads, and advance the position afterwards. O(reads).
  void append(State& state, const Entries& entries) const;

  /// The same for the next T tokens at once, entries [B,T,...].
  void extend(State& state, const Entries& entries) const;

  /// The slots of what token `state.position` reads, int32 [reads] as `attention_step` takes them;
  /// none if these are all that is held.
  std::optional<Tensor> slots_read(const State& state) const;

  /// All that is held, [B,held,...], oldest first only where everything is. Where the length is
  /// known, also slots whose token nobody reads any more.
  Tensor held_rows(const State& state, const std::string& name) const;

  /// For an operator on held_rows and `time` new tokens behind them: what these read, int64 row_ptr
  /// [held + time + 1] and int32 cols. Rows of held tokens are empty.
  std::pair<Tensor, Tensor> joined_rows(const State& state, int64_t time) const;

  /// What token i reads, ascending; good until the row after the next one is asked for.
  const std::vector<int32_t>& row(int64_t i) const;

  /// Rows of held_rows once t tokens have been appended, and the slots that there are for them.
  int64_t held(int64_t t) const;
  int64_t slots(int64_t t) const;

  /// Bytes kept once t tokens have been appended, with entries of `a_token` bytes.
  int64_t bytes(int64_t t, int64_t a_token) const;

  /// Makes a fresh state one after t tokens whose entries are random, for measuring at a length
  /// without taking it in: every tensor without tokens, [B,0,...], is filled.
  void fill(State& state, int64_t t) const;

 private:
  struct Row {
    int64_t token = -1;
    std::vector<int32_t> cols;
  };

  // What is held: the next row, every token with a reader to come, or everything.
  bool inherits() const { return inherits_; }
  bool fixed() const { return fixed_; }
  const LastUse& use() const;            // made when it is first asked for: training never does
  int64_t slot_of(int64_t token) const;  // unless it inherits; -1: none
  void bind(int64_t i) const;
  void append_to_slots(State& state, const Entries& entries) const;
  int64_t largest_row(int64_t begin, int64_t end) const;

  mutable Pattern pattern_;  // bound to more tokens as positions grow
  bool dense_, inherits_, fixed_ = false;
  mutable LastUse use_;                   // of a fixed pattern
  mutable std::array<Row, 2> rows_;       // the last ones asked for, by parity
  mutable std::vector<int64_t> reached_;  // reached_[m]: the first row of more than m tokens
  mutable int64_t scanned_ = 0;           // rows that reached_ knows
};

}  // namespace hopmix::nn

// In which slot a decoder stores each token of a stream, while a later token may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "hopmix/pattern/last_use.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// Slots for the tokens of a stream, on a pattern. It knows positions only: a caller stores the
/// entries, one policy may serve many streams, and copies are cheap.
class SlotPolicy {
 public:
  enum class Kind {
    kAll,       // any token may be read again, or all are (`dense`): token j has slot j
    kNextRow,   // rows inherit: the tokens of the next row, in the first slots, in any order
    kLifetimes  // the length is known: from a token's own step to that of its last reader
  };

  /// The length of the stream is known if it is given (0: unknown) or, for a dag, from its file.
  /// Only kLifetimes depends on it.
  explicit SlotPolicy(Pattern pattern, int64_t length = 0);

  Kind kind() const { return kind_; }
  const Pattern& pattern() const { return pattern_; }

  /// Throws Error if the pattern does not cover this many tokens.
  void check_length(int64_t tokens) const;

  /// Throws Error if a token at this position cannot be stored. Quick.
  void check_step(int64_t position) const {
    covering(kind_ == Kind::kNextRow ? position + 1 : position);
  }

  /// What token i reads, ascending; valid until the row after the next one is requested. Throws
  /// Error past a known length.
  const std::vector<int32_t>& row(int64_t i);

  /// Unless kNextRow: the slot of a token; -1 if no later token reads it.
  int32_t slot_of(int64_t token);

  /// After t tokens, the first `used(t)` slots hold what may still be read.
  int64_t used(int64_t t);

  /// What storing token i changes, after its reads: the slots of `freed` are free, its entry goes
  /// to `slot`, and then entries move, each from a slot to another.
  struct Change {
    std::vector<int32_t> freed;  // ascending
    int32_t slot = -1;           // -1: no later token reads it
    std::vector<std::pair<int32_t, int32_t>> moves;
  };
  /// `held`: the token in each slot that is used after i tokens, if kNextRow. O(reads).
  Change store(int64_t i, const int32_t* held);

  /// The number of slots to allocate for `used` ones. It grows by eighths of a power of two, unless
  /// kNextRow.
  int64_t room(int64_t used) const;

  /// The number of slots allocated after t tokens that were stored one by one.
  int64_t slots(int64_t t) const;

  /// The most tokens in one of the rows [begin, end).
  int64_t largest_row(int64_t begin, int64_t end) const;

 private:
  struct Row {
    int64_t token = -1;
    std::vector<int32_t> cols;
  };

  Pattern covering(int64_t i) const;  // the pattern on more than i tokens
  std::shared_ptr<const LastUse> lifetimes() const;

  Pattern pattern_;  // on more tokens as the stream goes on
  Kind kind_ = Kind::kAll;
  std::shared_ptr<const LastUse> lifetimes_;  // from the first step on; training needs none
  Row rows_[2];                               // the last two requested, by parity
};

}  // namespace hopmix

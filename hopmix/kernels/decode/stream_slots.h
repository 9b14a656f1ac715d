// Assigns each token of a stream a slot while a later token may read it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hopmix/pattern/last_use.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix::kernels {

/// Slots for consecutive tokens. For a pattern whose rows inherit (window, cached(f), ...), there
/// are as many as the largest row so far had tokens, the peak of its live cache; for a pattern of
/// known length, as many as tokens ever had a future reader (pattern/last_use.h); for any other,
/// one per token, since each may be read again. A copy advances independently.
class StreamSlots {
 public:
  /// The length is known if it is given (0: unknown) or, for a dag, from its file. Throws Error on
  /// a malformed spec.
  explicit StreamSlots(const std::string& spec, int64_t length = 0);

  /// The next token.
  int64_t position() const { return position_; }

  /// The slots of the tokens that it reads. Throws Error past a known length. O(reads).
  const std::vector<int32_t>& reads();

  /// Advances to the next token -> the slot for the entry of the current one, -1 if no later token
  /// reads it. That may be a slot the token read, so write after all reads. O(reads).
  int32_t advance();

  /// The number of slots ever used.
  int64_t count() const { return count_; }

 private:
  void bind(int64_t i);

  Pattern pattern_;  // bound to more tokens as the stream goes on
  bool inherits_, fixed_ = false;
  LastUse use_;  // of a known length
  int64_t position_ = 0, count_ = 0;
  std::vector<int32_t> reads_, next_;
  std::vector<int32_t> held_, held_at_, free_;  // if rows inherit: tokens, ascending, and slots
};

}  // namespace hopmix::kernels

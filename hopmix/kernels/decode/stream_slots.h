// Where a decoder keeps each token of a stream while a later one may read it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hopmix/pattern/last_use.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix::kernels {

/// Slots for one token after another. Of a pattern whose rows inherit (window, cached(f), ...)
/// there are as many as the largest row so far had tokens, the peak of its live cache; of a pattern
/// of known length as many as tokens ever had a reader to come (pattern/last_use.h); of any other,
/// one a token, since each may be read again. A value: a copy goes on by itself.
class StreamSlots {
 public:
  /// The length is known where it is given (0: it is not), and of dag, from its file. Throws Error
  /// on a malformed spec.
  explicit StreamSlots(const std::string& spec, int64_t length = 0);

  /// The token that comes next.
  int64_t position() const { return position_; }

  /// The slots of the tokens that it reads. Throws Error past a known length. O(reads).
  const std::vector<int32_t>& reads();

  /// Goes on to the token after it -> the slot where its entry belongs, -1 if nobody will read it.
  /// That may be a slot it read: write once all has been read. O(reads).
  int32_t advance();

  /// Slots that were ever given.
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

// Where a kernel keeps what later tokens still read of each token.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/kernels/rows/rows.h"

namespace hopmix::kernels {

/// Gives every token a slot while it may be read. Plain: token i has slot i. Compact: of a pattern
/// whose rows inherit (Pattern::inherits), only the live cache and the block in work have slots, so
/// that a long sequence reads a small buffer again and again instead of lines scattered over
/// memory. Either pass visits the blocks [begin, end) of one sequence in turn: forward first to
/// last, backward last to first.
class Slots {
 public:
  /// Compact where the pattern allows it and it saves memory; `block` is the longest block.
  Slots(const Rows& rows, int64_t length, int64_t block);

  /// Slots needed, of all blocks.
  int64_t count() const { return count_; }
  bool compact() const { return compact_; }

  /// Slot of a token that the block in work reads or holds.
  int32_t of(int64_t token) const { return compact_ ? slot_[token] : static_cast<int32_t>(token); }
  const int32_t* table() const { return compact_ ? slot_.data() : nullptr; }

  /// Goes to the next block of the forward pass.
  void forward(const Rows& rows, int64_t begin, int64_t end);

  /// Goes to the next block of the backward pass. entered() then lists the tokens that had no slot
  /// in the block before, ascending: their slots hold nothing yet.
  void backward(const Rows& rows, int64_t begin, int64_t end);
  const std::vector<int32_t>& entered() const { return entered_; }

 private:
  void give(int64_t token);
  void take(int64_t token);

  bool compact_ = false;
  int64_t count_ = 0, length_ = 0;
  std::vector<int32_t> slot_, free_, entered_, live_, next_;
  int64_t begin_ = -1, end_ = -1;  // the block before
};

}  // namespace hopmix::kernels

// The part of the past that a pattern still reads, kept token by token while decoding.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "hopmix/nn/mixer.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix::nn {

/// Keeps per-token tensors [B,c,...] in a State for the tokens that some later token reads.
/// Patterns whose rows inherit (window, dense, cached(f), ...) hold exactly the next token's row
/// and not a token more; of others every token is held, since any may be read again.
class Past {
 public:
  /// Throws Error on a malformed spec.
  explicit Past(const std::string& spec);

  const std::string& spec() const { return pattern_.spec(); }

  /// `tensors` as their rows read by token `state.position`: [B,reads,...], oldest first.
  Tensor read(const State& state, const std::string& name) const;

  /// Adds token `state.position`'s entries, each [B,...], and drops what no later token reads. Call
  /// it once a step, after the reads, and advance the position afterwards.
  void append(State& state, const std::vector<std::pair<std::string, Tensor>>& entries) const;

  /// What token i reads.
  std::vector<int32_t> row(int64_t i) const;

  /// Tokens held once t tokens have been appended.
  int64_t held(int64_t t) const;

 private:
  mutable Pattern pattern_;  // bound to more tokens as positions grow
};

}  // namespace hopmix::nn

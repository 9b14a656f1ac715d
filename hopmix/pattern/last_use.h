// Where to keep each token of a pattern of known length until its last reader.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// A slot for each token that a later one reads, from its own step to its last reader's: the
/// registers of a program without branches, given by linear scan over lifetimes. No fewer slots
/// would do: there are as many as tokens ever live at once, the peak of the pattern's live cache.
struct LastUse {
  std::vector<int32_t> slot;  // [n] of each token; -1: no later token reads it
  std::vector<int32_t> used;  // [n + 1] slots that the first t tokens have needed; never falls
};

/// O(reads + n log n). A slot is free for token i once its last reader is i or before.
LastUse last_use(const Pattern& pattern);

}  // namespace hopmix

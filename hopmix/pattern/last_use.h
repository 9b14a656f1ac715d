// Assigns each token of a pattern of known length a slot until its last reader.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// A slot for each token that a later token reads, held from its own step to that of its last
/// reader: register allocation for straight-line code, by linear scan over lifetimes. The number of
/// slots is minimal: it equals the largest number of tokens that live at once, the peak of the
/// pattern's live cache.
struct LastUse {
  std::vector<int32_t> slot;  // [n] the slot of each token; -1: no later token reads it
  std::vector<int32_t> used;  // [n + 1] slots needed for the first t tokens; never decreases
};

/// O(reads + n log n). A slot is free for token i if its last reader is at most i.
LastUse last_use(const Pattern& pattern);

}  // namespace hopmix

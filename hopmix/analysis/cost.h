// The cost of a pattern: reads (time) and live cache (memory). arXiv 2605.31367, propositions 4.2
// and 4.3.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

struct Cost {
  int64_t reads_total = 0;  // pairs (i, j) such that token i reads token j
  int64_t reads_max = 0;    // most reads of one token
  // [n] after token i: the number of tokens <= i that some later token below n still reads.
  std::vector<int64_t> cache;
  int64_t cache_peak = 0;  // its maximum
};

/// O(reads) time and, for a Pattern, O(n) memory: it makes no list of reads.
Cost cost(const Pattern& pattern);
Cost cost(const Csr& pattern);

}  // namespace hopmix

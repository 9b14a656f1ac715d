// What a pattern costs: reads (time) and live cache (memory). arXiv 2605.31367, propositions 4.2
// and 4.3.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

struct Cost {
  int64_t reads_total = 0;  // pairs (i, j), token i reads token j
  int64_t reads_max = 0;    // of one token
  std::vector<int64_t>
      cache;  // [n] after token i: the tokens <= i that some later token below n still reads
  int64_t cache_peak = 0;  // the largest of them
};

/// O(reads) time. Memory O(n): from a Pattern no list of reads is made.
Cost cost(const Pattern& pattern);
Cost cost(const Csr& pattern);

}  // namespace hopmix

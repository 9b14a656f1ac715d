// Measures how fast this machine reads from each of its caches: the upper bound for a kernel that
// reads rows.
#pragma once

#include <vector>

#include "hopmix/bench/statistics.h"

namespace hopmix::bench {

/// The levels of this machine with their measured rates, once for each entry of `threads`: the best
/// of several passes over a buffer, with the widest vectors available. Each thread reads its own
/// private caches; shared levels (L3, memory) are divided among the threads.
std::vector<Level> measure_levels(const std::vector<int>& threads);

}  // namespace hopmix::bench

// How fast this machine reads from each of its caches: the ceiling of a kernel that reads rows.
#pragma once

#include <vector>

#include "hopmix/bench/statistics.h"

namespace hopmix::bench {

/// The levels of this machine with measured rates, once for each entry of `threads`: the best of
/// several passes over a buffer, in the widest vectors there are. A thread's own caches are read
/// whole by each; what threads share (L3, memory) is divided among them.
std::vector<Level> measure_levels(const std::vector<int>& threads);

}  // namespace hopmix::bench

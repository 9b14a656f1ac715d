// The arithmetic of a report: medians, crossovers, which cache holds a working set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hopmix::bench {

/// The middle of `values`, or the mean of the two in the middle; NaN of none.
double median(std::vector<double> values);

/// The time of one length.
struct Timing {
  int64_t length = 0;
  double seconds = 0;
};

/// The shortest length that both lists hold from which on `ours` is quicker at every length that
/// both hold. Nothing if it is not quicker at the longest.
std::optional<int64_t> crossover(const std::vector<Timing>& ours, const std::vector<Timing>& peer);

/// Something that memory is read from, and how fast.
struct Level {
  std::string name;              // "L1", "L2", "L3", "memory"
  int64_t capacity_bytes = 0;    // 0: no limit
  int64_t buffer_bytes = 0;      // what the rates were measured over
  int threads = 1;               // that read at once
  double in_order_gb_per_s = 0;  // of all threads together
  double rows_gb_per_s = 0;      // rows of 512 bytes in random order
};

/// The levels of a machine by what the system says of its caches (bytes, 0 if unknown), with
/// buffers to measure each: half of L1 and L2; of L3 the geometric mean of it and L2, because a
/// virtual machine may have a part of it only; of memory, twice the largest cache, but a GiB and a
/// quarter of `free_memory` at most. Rates are 0.
std::vector<Level> plan_levels(int64_t l1, int64_t l2, int64_t l3, int64_t free_memory);

/// The smallest of `levels` with room for `bytes`, read by `threads`; null if none is.
const Level* level_of(const std::vector<Level>& levels, int64_t bytes, int threads);

}  // namespace hopmix::bench

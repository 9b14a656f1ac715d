// Arithmetic for reports: medians, crossovers, which cache holds a working set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hopmix::bench {

/// The median of `values`; NaN if empty.
double median(std::vector<double> values);

/// The time at one length.
struct Timing {
  int64_t length = 0;
  double seconds = 0;
};

/// The shortest common length from which `ours` is faster at every common length; none if it is not
/// faster at the longest.
std::optional<int64_t> crossover(const std::vector<Timing>& ours, const std::vector<Timing>& peer);

/// A level of the memory hierarchy and its bandwidth.
struct Level {
  std::string name;              // "L1", "L2", "L3", "memory"
  int64_t capacity_bytes = 0;    // 0: no limit
  int64_t buffer_bytes = 0;      // size of the buffer measured
  int threads = 1;               // reading concurrently
  double in_order_gb_per_s = 0;  // all threads together
  double rows_gb_per_s = 0;      // rows of 512 bytes in random order
};

/// The levels of a machine from the cache sizes that the system reports (bytes, 0 if unknown), with
/// buffer sizes to measure each: half of L1 and L2; for L3 the geometric mean of L3 and L2, because
/// a virtual machine may own only a part of it; for memory, twice the largest cache, but at most 1
/// GiB and a quarter of `free_memory`. Rates are 0.
std::vector<Level> plan_levels(int64_t l1, int64_t l2, int64_t l3, int64_t free_memory);

/// The smallest of `levels` with room for `bytes`, read by `threads`; null if there is none.
const Level* level_of(const std::vector<Level>& levels, int64_t bytes, int threads);

}  // namespace hopmix::bench

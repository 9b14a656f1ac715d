// Describes the machine that a benchmark ran on.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace hopmix::bench {

/// Sizes in bytes of a core's data caches and of the last-level cache; 0 if unknown.
struct Caches {
  int64_t l1 = 0, l2 = 0, l3 = 0;
};
Caches find_caches();

/// Bytes of memory available without swapping.
int64_t free_memory();

/// {"cpu", "logical_cpus", "l1_bytes", "l2_bytes", "l3_bytes", "memory_bytes", "simd" (of hopmix),
/// "torch_simd", "hopmix", "torch", "compiler", "date" (UTC), "load" (average over the last minute,
/// at the start)}.
nlohmann::ordered_json describe_machine();

}  // namespace hopmix::bench

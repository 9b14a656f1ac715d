// What a benchmark ran on.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace hopmix::bench {

/// Data caches of a core, and the last one, in bytes; 0 where the system does not say.
struct Caches {
  int64_t l1 = 0, l2 = 0, l3 = 0;
};
Caches find_caches();

/// Bytes of memory that nothing uses, or caches of files alone.
int64_t free_memory();

/// {"cpu", "logical_cpus", "l1_bytes", "l2_bytes", "l3_bytes", "memory_bytes", "simd" (of hopmix),
/// "torch_simd", "hopmix", "torch", "compiler", "date" (UTC), "load" (average of the last minute,
/// as this began)}.
nlohmann::ordered_json describe_machine();

}  // namespace hopmix::bench

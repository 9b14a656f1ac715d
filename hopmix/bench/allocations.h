// Measures, to the byte, the peak memory allocated while code runs, by any allocator client:
// tensors, vectors, the scratch memory of libraries.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace hopmix::bench {

/// Runs `body` and returns the peak number of bytes allocated by all threads together, beyond what
/// was allocated before. In a program that links this, malloc and its relatives count while a body
/// runs and are glibc's own otherwise. Returns nothing where counting is impossible (another C
/// library, a sanitizer). Only one body may run at a time.
std::optional<int64_t> peak_allocated(const std::function<void()>& body);

}  // namespace hopmix::bench

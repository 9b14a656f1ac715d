// How much memory there is.
#pragma once

#include <cstdint>
#include <string>

namespace hopmix {

/// Bytes of memory that a process can use at most: the machine's, or its control group's limit.
int64_t memory_size();

/// a * b, or the largest number if that overflows. Neither may be negative.
int64_t saturating_product(int64_t a, int64_t b);

/// "512 bytes", "1.5 GiB".
std::string format_bytes(int64_t bytes);

}  // namespace hopmix

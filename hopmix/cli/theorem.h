// `hopmix reproduce theorem`.
#pragma once

#include <cstdint>

namespace hopmix::cli {

/// Runs the block of Theorem 3.3 (nn/constructed_block.h) on every instance of small domains, on
/// random ones up to n = 1000, and beyond the n where float32 fails. Prints the share of questions
/// it answers correctly, as a table or as JSON. `draws`: random choices of functions per row, each
/// asked every question.
void reproduce_theorem(int64_t draws, bool json);

}  // namespace hopmix::cli

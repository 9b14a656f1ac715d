// `hopmix reproduce theorem`.
#pragma once

#include <cstdint>

namespace hopmix::cli {

/// Runs the block of Theorem 3.3 (nn/constructed_block.h) on every instance of small domains and on
/// random ones up to n = 1000, then past where float32 runs out; prints how many questions it
/// answers, as a table or as JSON. `draws`: choices of functions a row, each asked all its
/// questions.
void reproduce_theorem(int64_t draws, bool json);

}  // namespace hopmix::cli

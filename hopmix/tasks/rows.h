// What the generators share: a batch filled row by row, and the check of a size.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "hopmix/tasks/rng.h"
#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

/// The longest row of any task, and so the bound of every size.
inline constexpr int64_t kMaxLength = int64_t{1} << 24;

/// One sequence of a batch, [T] each. `targets` and `slices` come filled with kNoTarget and
/// kNoSlice.
struct Row {
  std::span<int64_t> tokens, targets, slices;
};

/// A Task::sample that calls `fill` on each row with a generator of that row's own.
std::function<Batch(int64_t batch, uint64_t seed)> by_rows(
    int64_t length, std::function<void(Rng& rng, const Row& row)> fill);

/// Throws Error unless least <= value <= most. `note` ends its message.
void check_range(const std::string& name, int64_t value, int64_t least, int64_t most,
                 const std::string& note = "");

}  // namespace hopmix::tasks

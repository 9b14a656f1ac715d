// What the generators share: a batch filled row by row, and the check of a size.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hopmix/tasks/rng.h"
#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

/// The longest row of any task, and so the bound of every size.
inline constexpr int64_t kMaxLength = int64_t{1} << 24;

/// One sequence of a batch, [T] each, or flat [T, numbers a token] and [T, readouts]. `targets` and
/// `slices` come filled with kNoTarget and kNoSlice.
struct Row {
  std::span<int64_t> tokens, targets, slices;
};

/// A Task::sample that calls `fill` on each row with a generator of that row's own. Tensors are
/// [B, T], and three-dimensional where a token is several numbers or is asked several things.
std::function<Batch(int64_t batch, uint64_t seed)> by_rows(
    int64_t length, std::function<void(Rng& rng, const Row& row)> fill, int64_t numbers = 1,
    int64_t readouts = 1);

/// A row written word by word, for tasks whose sequences differ in length.
struct Text {
  std::vector<int64_t> tokens, targets, slices;

  void say(int64_t token, int64_t target = kNoTarget, int64_t slice = kNoSlice);
  void drop_last();
  /// Writes the text to the end of `row`, which must hold it, and `pad` before it.
  void align_right(int64_t pad, const Row& row) const;
};

/// `count` different numbers of 0..n-1, count <= n: every choice and every order equally likely. In
/// O(count).
std::vector<int64_t> draw_distinct(Rng& rng, int64_t n, int64_t count);

/// Throws Error unless least <= value <= most. `note` ends its message.
void check_range(const std::string& name, int64_t value, int64_t least, int64_t most,
                 const std::string& note = "");

/// Throws Error unless `value` is one of `choices`.
void check_choice(const std::string& name, const std::string& value,
                  const std::vector<std::string>& choices);

/// check_range, and `value` must be even.
void check_even(const std::string& name, int64_t value, int64_t least, int64_t most);

}  // namespace hopmix::tasks

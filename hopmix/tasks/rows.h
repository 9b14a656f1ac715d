// Shared by the generators: filling a batch row by row, and range checks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hopmix/tasks/rng.h"
#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

/// The longest row of any task, which bounds every size.
inline constexpr int64_t kMaxLength = int64_t{1} << 24;

/// One sequence of a batch, [T] each, or flat [T, numbers per token] and [T, readouts]. `targets`
/// and `slices` are initialized to kNoTarget and kNoSlice.
struct Row {
  std::span<int64_t> tokens, targets, slices;
};

/// A Task::sample that calls `fill` on each row with the row's own generator. Tensors are [B, T],
/// or three-dimensional if a token has several numbers or several targets.
std::function<Batch(int64_t batch, uint64_t seed)> by_rows(
    int64_t length, std::function<void(Rng& rng, const Row& row)> fill, int64_t numbers = 1,
    int64_t readouts = 1);

/// A row built word by word, for tasks whose sequences vary in length.
struct Text {
  std::vector<int64_t> tokens, targets, slices;

  void say(int64_t token, int64_t target = kNoTarget, int64_t slice = kNoSlice);
  void drop_last();
  /// Writes the text to the end of `row`, which must have room for it, with `pad` before it.
  void align_right(int64_t pad, const Row& row) const;
};

/// `count` different numbers from 0..n-1, count <= n, every choice and order equally likely.
/// O(count).
std::vector<int64_t> draw_distinct(Rng& rng, int64_t n, int64_t count);

/// Throws Error unless least <= value <= most. `note` is appended to the message.
void check_range(const std::string& name, int64_t value, int64_t least, int64_t most,
                 const std::string& note = "");

/// Throws Error unless `value` is one of `choices`.
void check_choice(const std::string& name, const std::string& value,
                  const std::vector<std::string>& choices);

/// Like check_range, and `value` must be even.
void check_even(const std::string& name, int64_t value, int64_t least, int64_t most);

}  // namespace hopmix::tasks

// Tasks: seeded sources of batches, each testing one ability of a sequence model (docs/tasks.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hopmix/base/content_hash.h"
#include "hopmix/config/config.h"
#include "hopmix/config/task_field.h"

namespace hopmix::tasks {

/// Where nothing is asked: the target that cross entropy ignores, and the slice of such a token.
inline constexpr int64_t kNoTarget = -100;
inline constexpr int64_t kNoSlice = -1;

/// All tensors are int64. A model reads `tokens` and is asked, at every position, for the entry of
/// `targets`.
struct Batch {
  at::Tensor tokens;   // [B, T], or [B, T, 1 + fields] of a task with fields
  at::Tensor targets;  // [B, T], or [B, T, readouts]; kNoTarget where nothing is asked
  at::Tensor slices;   // like targets: the slice that an asked token belongs to, else kNoSlice;
                       // never set without slice_name

  /// For packed documents, which do not see each other: B is 1, and document n is tokens[0,
  /// cu_seqlens[n]:cu_seqlens[n+1]]. Otherwise each row is one sequence.
  std::optional<at::Tensor> cu_seqlens = {};
};

/// A task, as a value: copies are independent, and `sample` is thread-safe.
struct Task {
  std::string name;
  int64_t vocabulary;  // tokens are 0..vocabulary-1
  int64_t length;      // T; the longest if the task mixes lengths (a batch has one length)
  std::string
      slice_name;  // what Batch::slices counts, such as "depth"; "" if the task has no slices
  double chance;   // accuracy, in percent, of a uniform guess among the values
  std::vector<config::TaskField> fields = {};  // what a token carries besides its vocabulary index
  int64_t readouts = 1;                        // answers per position

  /// A batch of at least one sequence. Row r depends only on (seed, r), not on the batch size, the
  /// number of threads or the machine. Throws Error for batch < 1.
  std::function<Batch(int64_t batch, uint64_t seed)> sample;

  // For text only:
  /// Batches for evaluation, from text that `sample` never draws; none if every batch is fresh.
  std::function<Batch(int64_t batch, uint64_t seed)> sample_held_out = {};
  double bytes_per_token = 0;  // average over asked tokens of the held-out text; 0 for other tasks
  std::map<std::string, std::string> files = {};  // to keep in the run directory, by name
  /// What it reads and a run does not keep, by the key that names it.
  std::map<std::string, Digest> inputs = {};
};

/// A key of a task's table, for listings.
struct TaskKey {
  std::string name, meaning;
};

struct TaskInfo {
  std::string name, description;
  std::vector<TaskKey> keys;
};

/// A task's entry in the registry (task.cc): its name, and how to build it from a table. `make`
/// reads its own keys and need not call finish().
struct TaskEntry {
  TaskInfo info;
  Task (*make)(config::Table& table);
};

/// Builds the task that `table` describes: `name`, and the task's own keys, each with a default
/// that is written back. Throws Error for an unknown name or key, or a value out of range.
Task make_task(config::Table& table);

/// All tasks, in the order of docs/tasks.md.
std::vector<TaskInfo> tasks();

}  // namespace hopmix::tasks

// Tasks: seeded sources of batches that ask one thing of a sequence model (docs/tasks.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hopmix/config/config.h"

namespace hopmix::tasks {

/// What is not asked: the target that a cross entropy ignores, and the slice of such a token.
inline constexpr int64_t kNoTarget = -100;
inline constexpr int64_t kNoSlice = -1;

/// int64. A model reads `tokens` and is asked, at every position, for the entry of `targets` there.
struct Batch {
  at::Tensor tokens;   // [B, T], or [B, T, 1 + fields] of a task with fields
  at::Tensor targets;  // [B, T], or [B, T, readouts]; kNoTarget where nothing is asked
  at::Tensor slices;   // as targets: the slice that the asked token is counted in, else kNoSlice;
                       // never set without slice_name

  /// Of packed documents, which do not see each other: B is 1, and document n is tokens[0,
  /// cu_seqlens[n]:cu_seqlens[n+1]]. Else each row is one sequence.
  std::optional<at::Tensor> cu_seqlens = {};
};

/// One more number that a token carries, of an alphabet of its own.
struct Field {
  std::string name;
  int64_t size;            // 0..size-1
  bool of_tokens = false;  // of the task's vocabulary: a model reads it with the same vectors
};

/// A task as a value: copies are independent, `sample` may be called from many threads.
struct Task {
  std::string name;
  int64_t vocabulary;  // tokens are 0..vocabulary-1
  int64_t length;      // T; the longest of a task that mixes lengths, each batch of one
  std::string
      slice_name;  // what Batch::slices counts, such as "depth"; "" for a task without slices
  double chance;   // accuracy, in percent, of a uniform guess among the values
  std::vector<Field> fields = {};  // what a token carries beside its place in the vocabulary
  int64_t readouts = 1;            // answers asked for at one position

  /// A batch of at least one sequence. Row r depends on (seed, r) alone: not on the batch size, the
  /// number of threads or the machine. Throws Error for batch < 1.
  std::function<Batch(int64_t batch, uint64_t seed)> sample;

  // Of a text:
  /// Batches of what `sample` never draws from, to evaluate on; none where every batch is fresh.
  std::function<Batch(int64_t batch, uint64_t seed)> sample_held_out = {};
  double bytes_per_token = 0;  // that an asked token stands for, held out; 0 for other tasks
  std::map<std::string, std::string> files = {};  // that a run keeps beside its config, by name
};

/// A key of a task's table, for listings.
struct TaskKey {
  std::string name, meaning;
};

struct TaskInfo {
  std::string name, description;
  std::vector<TaskKey> keys;
};

/// How a task enters the registry (task.cc): what it is called and how a table makes it. `make`
/// reads its own keys and need not call finish().
struct TaskEntry {
  TaskInfo info;
  Task (*make)(config::Table& table);
};

/// The task that `table` describes: `name`, and the task's own keys, each with a default that is
/// written back. Throws Error for an unknown name or key, or a value out of range.
Task make_task(config::Table& table);

/// Every task, in the order of docs/tasks.md.
std::vector<TaskInfo> tasks();

}  // namespace hopmix::tasks

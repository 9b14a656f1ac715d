// The other tasks of MAD, "Mechanistic Design and Scaling of Hybrid Architectures" (arXiv
// 2403.17844): selective copying, compression and memorization.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct SelectiveCopyingConfig {
  int64_t vocabulary = 16;  // symbols, a blank and a copy token; at least 4
  int64_t length = 256;     // at least 2 m + 1
  int64_t m = 16;           // symbols to copy
};

/// m symbols among T - 2 m - 1 blanks, each blank placed before a uniformly drawn symbol; then the
/// copy token and m blanks, at which the targets are the symbols in order. Symbols are 0..V-3, the
/// blank is V-2, the copy token V-1.
///
/// Throws Error for a size out of range; `where` precedes the key in the message.
Task selective_copying_task(const SelectiveCopyingConfig& config, const std::string& where = "");

struct CompressionConfig {
  int64_t vocabulary = 16;  // symbols and the compression token; at least 3
  int64_t m = 31;           // symbols
};

/// m symbols drawn uniformly, then m times the compression token V-1, at which the targets are the
/// symbols in order. In MAD an MLP that is told the position reads every symbol from the state at a
/// single compression token. Here the model answers at its own positions, so a mixer that keeps all
/// tokens (attention) need not compress anything.
///
/// Throws Error for a size out of range; `where` precedes the key in the message.
Task compression_task(const CompressionConfig& config, const std::string& where = "");

struct MemorizationConfig {
  int64_t vocabulary = 256;  // keys, values and the insert token; at least 5
  int64_t length = 32;       // even
  int64_t map_seed = 0;      // seed of the mapping, at least 0
};

/// Pairs `key insert`, keys drawn uniformly. At the insert token V-1 the target is the key's value
/// in a mapping that is the same in every sequence and shown in none. Different keys have different
/// values, drawn by `map_seed`. Half of the other tokens, rounded down, are keys.
///
/// Throws Error for a size out of range; `where` precedes the key in the message.
Task memorization_task(const MemorizationConfig& config, const std::string& where = "");

TaskEntry selective_copying_entry();
TaskEntry compression_entry();
TaskEntry memorization_entry();

}  // namespace hopmix::tasks

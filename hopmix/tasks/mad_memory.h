// The other tasks of MAD, "Mechanistic Design and Scaling of Hybrid Architectures" (arXiv
// 2403.17844): copying among blanks, compression, and a mapping to learn by heart.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct SelectiveCopyingConfig {
  int64_t vocabulary = 16;  // symbols, a blank and a copy token; from 4
  int64_t length = 256;     // from 2 m + 1
  int64_t m = 16;           // symbols to copy
};

/// m symbols among T - 2 m - 1 blanks, each blank put before one of the symbols, drawn uniformly;
/// then the copy token and m blanks, at which the targets are the symbols in their order. Tokens:
/// symbols are 0..V-3, the blank is V-2, the copy token V-1.
///
/// Throws Error for a size out of range; `where` goes before the key in its message.
Task selective_copying_task(const SelectiveCopyingConfig& config, const std::string& where = "");

struct CompressionConfig {
  int64_t vocabulary = 16;  // symbols and the compression token; from 3
  int64_t m = 31;           // symbols
};

/// m symbols drawn uniformly, then the compression token V-1 m times, at which the targets are the
/// symbols in their order. MAD reads them all from the state at one compression token, through an
/// MLP that is told the position; here a model reads on, and one that keeps all tokens (attention)
/// need compress nothing.
///
/// Throws Error for a size out of range; `where` goes before the key in its message.
Task compression_task(const CompressionConfig& config, const std::string& where = "");

struct MemorizationConfig {
  int64_t vocabulary = 256;  // keys, values and the insert token; from 5
  int64_t length = 32;       // even
  int64_t map_seed = 0;      // of the mapping, from 0
};

/// Pairs `key insert`, keys drawn uniformly; the target at the insert token V-1 is the key's value
/// in a mapping that is the same in every sequence, and that no sequence shows: different values
/// for different keys, drawn by `map_seed`. Half of the other tokens, rounded down, are keys.
///
/// Throws Error for a size out of range; `where` goes before the key in its message.
Task memorization_task(const MemorizationConfig& config, const std::string& where = "");

TaskEntry selective_copying_entry();
TaskEntry compression_entry();
TaskEntry memorization_entry();

}  // namespace hopmix::tasks

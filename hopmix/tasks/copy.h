// Copy: repeat a sequence. The plainest test of how far, and how much, a mixer carries.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct CopyConfig {
  int64_t symbols = 4;  // at least 2
  int64_t m = 30;       // symbols to copy, at least 1
};

/// x_1 .. x_m SEP x_1 .. x_{m-1}, with symbols drawn uniformly and SEP = `symbols`. From SEP on,
/// the target of each token is the next symbol of the copy. Vocabulary symbols + 1, length 2 m.
/// Throws Error for a size out of range; `where` precedes the key in the message.
Task copy_task(const CopyConfig& config, const std::string& where = "");

TaskEntry copy_entry();

}  // namespace hopmix::tasks

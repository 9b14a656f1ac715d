// Copy: repeat what was said. The plainest test of how far, and how much, a mixer carries.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct CopyConfig {
  int64_t symbols = 4;  // from 2
  int64_t m = 30;       // symbols to copy, from 1
};

/// x_1 .. x_m SEP x_1 .. x_{m-1}, symbols drawn uniformly, SEP = `symbols`. From SEP on each token
/// asks for the next symbol of the copy. Vocabulary symbols + 1, length 2 m. Throws Error for a
/// size out of range; `where` goes before the key in its message.
Task copy_task(const CopyConfig& config, const std::string& where = "");

TaskEntry copy_entry();

}  // namespace hopmix::tasks

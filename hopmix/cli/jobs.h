// Child processes, a few at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hopmix::cli {

/// A child's end: which command, its exit code (128 + signal if a signal ended it), and what it
/// wrote to stderr.
struct JobEnd {
  size_t index = 0;
  int code = 0;
  std::string errors;
};

/// Runs `commands`, `jobs` at a time, in order; the first word is the program. `ended` hears of
/// each end, `tick` is called about twice a second. When `stop` says so, no more are started, and
/// those running are sent SIGINT once and waited for.
void run_jobs(const std::vector<std::vector<std::string>>& commands, int64_t jobs,
              const std::function<void(const JobEnd&)>& ended, const std::function<void()>& tick,
              const std::function<bool()>& stop);

/// The path of this program.
std::string this_program();

}  // namespace hopmix::cli

// Runs child processes, several in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hopmix::cli {

/// How a child ended: the index of its command, its exit code (128 + signal if a signal killed it)
/// and its stderr.
struct JobEnd {
  size_t index = 0;
  int code = 0;
  std::string errors;
};

/// Runs `commands` in order, up to `jobs` in parallel; the first word is the program. Calls `ended`
/// for each child that ends, and `tick` about twice a second. Once `stop` returns true, starts no
/// more, sends the running ones SIGINT once and waits for them. If this process is killed, they get
/// SIGTERM.
void run_jobs(const std::vector<std::vector<std::string>>& commands, int64_t jobs,
              const std::function<void(const JobEnd&)>& ended, const std::function<void()>& tick,
              const std::function<bool()>& stop);

/// The path of this program.
std::string this_program();

}  // namespace hopmix::cli

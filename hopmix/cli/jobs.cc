#include "hopmix/cli/jobs.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

#include "hopmix/base/error.h"

extern char** environ;

namespace hopmix::cli {
namespace {

// A child process and the unlinked file that receives its stderr.
struct Child {
  size_t index;
  std::FILE* errors;
};

std::string read_and_close(std::FILE* file) {
  std::string text;
  std::rewind(file);
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, n);
  std::fclose(file);
  return text;
}

pid_t start(const std::vector<std::string>& command, std::FILE* errors) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(errors), STDERR_FILENO);
  // Each child gets its own process group, so that only we receive Ctrl-C. We forward it once: a
  // second one would kill a child before it saves.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = 0;
  const int error =
      posix_spawn(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error) throw Error("cannot start '" + command[0] + "': " + std::strerror(error));
  return child;
}

}  // namespace

void run_jobs(const std::vector<std::vector<std::string>>& commands, int64_t jobs,
              const std::function<void(const JobEnd&)>& ended, const std::function<void()>& tick,
              const std::function<bool()>& stop) {
  constexpr auto kPoll = std::chrono::milliseconds(50);
  constexpr int kPollsPerTick = 10;
  std::map<pid_t, Child> running;
  size_t next = 0;
  bool stopping = false;
  for (int poll = 0;; ++poll) {
    if (!stopping && stop()) {
      stopping = true;
      for (const auto& item : running) kill(item.first, SIGINT);
    }
    while (!stopping && next < commands.size() && static_cast<int64_t>(running.size()) < jobs) {
      std::FILE* errors = std::tmpfile();
      if (!errors)
        throw Error(std::string("cannot create a temporary file: ") + std::strerror(errno));
      running[start(commands[next], errors)] = {next, errors};
      ++next;
    }
    int status = 0;
    for (pid_t child; (child = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto found = running.find(child);
      if (found == running.end()) continue;
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      const JobEnd end{found->second.index, code, read_and_close(found->second.errors)};
      running.erase(found);
      ended(end);
    }
    if (running.empty() && (stopping || next == commands.size())) return;
    if (poll % kPollsPerTick == 0) tick();
    std::this_thread::sleep_for(kPoll);
  }
}

std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

}  // namespace hopmix::cli

#include "hopmix/cli/jobs.h"

#include <sys/prctl.h>
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

namespace hopmix::cli {
namespace {

constexpr int kNotStarted = 127;  // a shell's exit code for a command it cannot start

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

// In the child: runs the command, or ends.
[[noreturn]] void become(char* const* arguments, int errors, pid_t parent) {
  // A process group of its own, so that only we receive Ctrl-C. We forward it once: a second one
  // would kill a child before it saves.
  setpgid(0, 0);
  // If we are killed, it saves and stops.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kNotStarted);
  dup2(errors, STDERR_FILENO);
  execv(arguments[0], arguments);
  dprintf(STDERR_FILENO, "cannot start '%s': %s\n", arguments[0], std::strerror(errno));
  _exit(kNotStarted);
}

pid_t start(const std::vector<std::string>& command, std::FILE* errors) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid(), child = fork();
  if (child == 0) become(arguments.data(), fileno(errors), parent);
  if (child < 0) throw Error("cannot start '" + command[0] + "': " + std::strerror(errno));
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

#include "hopmix/analysis/program.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"

extern char** environ;

namespace hopmix {
namespace {

constexpr int kKilled = 126;

[[noreturn]] void fail(const std::filesystem::path& output, const std::string& why) {
  throw Error("cannot plot '" + output.string() + "': " + why);
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

// Unnamed files rather than pipes, so that neither side can block or kill the other.
File nameless(const std::filesystem::path& output) {
  File file(std::tmpfile());
  if (!file) fail(output, std::string("no temporary file: ") + std::strerror(errno));
  return file;
}

std::string contents(std::FILE* file) {
  std::rewind(file);
  std::string text;
  std::array<char, 4096> piece;
  for (size_t n; (n = std::fread(piece.data(), 1, piece.size(), file)) > 0;) {
    text.append(piece.data(), n);
  }
  return text;
}

struct End {
  bool found = false;  // whether the program exists
  int status = 0;
  std::string messages;
};

End run(const std::vector<std::string>& command, const std::string& input,
        const std::filesystem::path& output) {
  const File in = nameless(output), messages = nameless(output);
  if (std::fwrite(input.data(), 1, input.size(), in.get()) != input.size() ||
      std::fflush(in.get()) != 0) {
    fail(output, std::string("no room for the script: ") + std::strerror(errno));
  }
  std::rewind(in.get());

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, fileno(in.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, fileno(messages.get()), STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&files, fileno(messages.get()), STDOUT_FILENO);
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, arguments[0], &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  End end;
  if (failed != 0) return end;
  end.found = true;
  int status = 0;
  end.status = kKilled;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return end;
  }
  if (WIFEXITED(status)) end.status = WEXITSTATUS(status);
  end.messages = contents(messages.get());
  return end;
}

}  // namespace

std::filesystem::path temporary_for(const std::filesystem::path& output) {
  const std::string name = "hopmix-plot-" + std::to_string(::getpid());
  return std::filesystem::temp_directory_path() / (name + output.extension().string());
}

Drawn draw(const std::vector<std::string>& command, const std::string& input,
           const std::filesystem::path& output) {
  const std::filesystem::path temporary = temporary_for(output);
  const End end = run(command, input, output);
  const std::shared_ptr<void> remove(nullptr, [&](void*) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
  });
  if (!end.found) {
    fail(output, "the program " + command[0] + " is not installed or not on PATH");
  }
  if (end.status != 0) return {false, end.messages};
  write_file(output, read_file(temporary));
  return {true, end.messages};
}

}  // namespace hopmix

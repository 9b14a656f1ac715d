#include "hopmix/analysis/gnuplot.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>

#include "hopmix/base/error.h"

extern char** environ;

namespace hopmix {
namespace {

constexpr int kLinesBefore = 2;  // of ours, before the script

[[noreturn]] void fail(const std::filesystem::path& output, const std::string& why) {
  throw Error("cannot plot '" + output.string() + "': " + why);
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

// Files without a name rather than pipes: neither side can block the other or die of the other's
// end.
File nameless(const std::filesystem::path& output) {
  File file(std::tmpfile());
  if (!file) fail(output, std::string("no temporary file: ") + std::strerror(errno));
  return file;
}

std::string terminal(const std::filesystem::path& output, int width, int height) {
  const std::string size = " size " + std::to_string(width) + "," + std::to_string(height);
  const std::string style = " enhanced font 'DejaVu Sans,13' background '#ffffff'";
  const std::string ending = output.extension().string();
  if (ending == ".svg") return "set terminal svg" + size + style;
  if (ending == ".png") return "set terminal pngcairo" + size + style;
  throw Error("plot file '" + output.string() + "' must end in .svg or .png");
}

// Runs gnuplot with `in` as its commands and `err` for its messages. Returns its exit status, 127
// when there is none.
int run_gnuplot(std::FILE* in, std::FILE* err) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, fileno(in), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, fileno(err), STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&files, fileno(err), STDOUT_FILENO);
  char name[] = "gnuplot";
  // Given as a file, so that messages have line numbers.
  char script[] = "/dev/stdin";
  char* const arguments[] = {name, script, nullptr};
  pid_t child = 0;
  const int failed = posix_spawnp(&child, name, &files, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) return 127;
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return 126;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 126;
}

// The line that says what is wrong, as "line 3: invalid command" with the script's own numbers.
// gnuplot echoes the command and marks the place before it.
std::string complaint(std::FILE* err) {
  std::rewind(err);
  std::array<char, 1024> line;
  std::string first;
  while (std::fgets(line.data(), static_cast<int>(line.size()), err)) {
    std::string_view text = line.data();
    text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size()));
    text.remove_suffix(text.ends_with('\n') ? 1 : 0);
    int number = 0, read = 0;
    if (std::sscanf(line.data(), "\"/dev/stdin\" line %d: %n", &number, &read) == 1) {
      return "line " + std::to_string(number - kLinesBefore) + ": " +
             std::string(text.substr(read));
    }
    if (first.empty()) first = text;
  }
  return first.empty() ? "no message" : first;
}

}  // namespace

std::string gnuplot_string(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\n') continue;
    quoted += c;
    if (c == '\'') quoted += c;
  }
  return quoted + "'";
}

void plot(const std::string& script, const std::filesystem::path& output, int width, int height) {
  const std::filesystem::path temporary = output.string() + ".tmp";
  const std::string commands = terminal(output, width, height) + "\nset output " +
                               gnuplot_string(temporary.string()) + "\n" + script +
                               "\nunset output\n";
  const File in = nameless(output), err = nameless(output);
  if (std::fwrite(commands.data(), 1, commands.size(), in.get()) != commands.size() ||
      std::fflush(in.get()) != 0) {
    fail(output, std::string("no room for the script: ") + std::strerror(errno));
  }
  std::rewind(in.get());

  const int status = run_gnuplot(in.get(), err.get());
  std::error_code moved;
  if (status == 0) std::filesystem::rename(temporary, output, moved);
  if (status == 0 && !moved) return;
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  if (status == 127) fail(output, "the program gnuplot is not installed or not on PATH");
  if (status != 0) fail(output, "gnuplot says: " + complaint(err.get()));
  fail(output, moved.message());
}

}  // namespace hopmix

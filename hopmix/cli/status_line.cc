#include "hopmix/cli/status_line.h"

#include <unistd.h>

#include <cstdio>

namespace hopmix::cli {
namespace {

constexpr double kTerminalInterval = 0.1, kLogInterval = 5.0;  // seconds
constexpr size_t kWidest = 78;  // what wraps cannot be rewritten in place

}  // namespace

StatusLine::StatusLine() : terminal_(isatty(STDERR_FILENO)), start_(Clock::now()), shown_(start_) {}

StatusLine::~StatusLine() {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

double StatusLine::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void StatusLine::show(const std::string& text) {
  const Clock::time_point now = Clock::now();
  const double since = std::chrono::duration<double>(now - shown_).count();
  if (since < (terminal_ ? kTerminalInterval : kLogInterval)) return;
  shown_ = now;
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s", text.substr(0, kWidest).c_str());
    std::fflush(stderr);
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

}  // namespace hopmix::cli

#include "hopmix/base/status_line.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace hopmix {
namespace {

constexpr double kTerminalInterval = 0.1, kLogInterval = 5.0;  // seconds
constexpr size_t kWidest = 78;  // a wrapped line cannot be rewritten in place

}  // namespace

StatusLine::StatusLine(bool quiet)
    : quiet_(quiet), terminal_(isatty(STDERR_FILENO)), start_(Clock::now()), shown_(start_) {}

StatusLine::~StatusLine() {
  if (!quiet_ && terminal_) std::fputs("\r\033[K", stderr);
}

double StatusLine::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void StatusLine::show(const std::string& text, bool last) {
  if (quiet_) return;
  const Clock::time_point now = Clock::now();
  const double since = std::chrono::duration<double>(now - shown_).count();
  if (!last && since < (terminal_ ? kTerminalInterval : kLogInterval)) return;
  shown_ = now;
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s", text.substr(0, kWidest).c_str());
    std::fflush(stderr);
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

std::string format_duration(double seconds) {
  const auto total = static_cast<long long>(std::llround(seconds));
  char text[48];
  if (total >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", total / 3600, total / 60 % 60,
                  total % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", total / 60, total % 60);
  }
  return text;
}

std::string format_count(double count) {
  char text[32];
  if (count >= 1e6) {
    std::snprintf(text, sizeof text, "%.1fM", count / 1e6);
  } else if (count >= 1e3) {
    std::snprintf(text, sizeof text, "%.1fk", count / 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.0f", count);
  }
  return text;
}

}  // namespace hopmix

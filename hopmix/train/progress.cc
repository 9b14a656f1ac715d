#include "hopmix/train/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace hopmix::train {
namespace {

constexpr double kTerminalInterval = 0.1, kLogInterval = 5.0;  // seconds

}  // namespace

Progress::Progress(bool quiet, int64_t first, int64_t total)
    : quiet_(quiet),
      terminal_(isatty(STDERR_FILENO)),
      first_(first),
      total_(total),
      start_(Clock::now()),
      shown_(start_) {}

Progress::~Progress() {
  if (!quiet_ && terminal_) std::fputs("\r\033[K", stderr);
}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void Progress::update(int64_t step, const std::string& note, int64_t tokens_per_step) {
  if (quiet_) return;
  const Clock::time_point now = Clock::now();
  const double since = std::chrono::duration<double>(now - shown_).count();
  if (step < total_ && since < (terminal_ ? kTerminalInterval : kLogInterval)) return;
  shown_ = now;
  const double elapsed = seconds(), done = static_cast<double>(step - first_);
  const double rate = done * static_cast<double>(tokens_per_step) / elapsed;
  const double left = elapsed / done * static_cast<double>(total_ - step);
  std::fprintf(stderr, "%sstep %lld/%lld  %s  %s tokens/s  %s left%s", terminal_ ? "\r\033[K" : "",
               static_cast<long long>(step), static_cast<long long>(total_), note.c_str(),
               format_count(rate).c_str(), format_duration(left).c_str(), terminal_ ? "" : "\n");
  std::fflush(stderr);
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

}  // namespace hopmix::train

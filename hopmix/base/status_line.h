// Progress of long-running work, on stderr.
#pragma once

#include <chrono>
#include <string>

namespace hopmix {

/// Updates in place on a terminal, prints a line every few seconds elsewhere, and prints nothing if
/// `quiet`. The destructor clears the line.
class StatusLine {
 public:
  explicit StatusLine(bool quiet = false);
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Shows `text`, at most ten times a second; `last` always shows it.
  void show(const std::string& text, bool last = false);

  /// Seconds since construction.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool quiet_, terminal_;
  Clock::time_point start_, shown_;
};

/// "0:07", "12:40", "3:02:15".
std::string format_duration(double seconds);

/// "950", "35.1k", "2.4M".
std::string format_count(double count);

}  // namespace hopmix

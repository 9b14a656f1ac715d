// What long work is at, on stderr.
#pragma once

#include <chrono>
#include <string>

namespace hopmix::cli {

/// In place on a terminal, a line every few seconds elsewhere; gone when it ends.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void show(const std::string& text);

  /// Since it began.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool terminal_;
  Clock::time_point start_, shown_;
};

}  // namespace hopmix::cli

// The line that long work shows: where it stands, how fast it is, how long it still takes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace hopmix::train {

/// Writes to stderr: in place on a terminal, a line every few seconds elsewhere, nothing if
/// `quiet`.
class Progress {
 public:
  Progress(bool quiet, int64_t first, int64_t total);
  ~Progress();

  /// Shows "step 120/500  NOTE  35.1k tokens/s  0:12 left".
  void update(int64_t step, const std::string& note, int64_t tokens_per_step);

  /// Since the start.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool quiet_, terminal_;
  int64_t first_, total_;
  Clock::time_point start_, shown_;
};

/// "0:07", "12:40", "3:02:15".
std::string format_duration(double seconds);

/// "950", "35.1k", "2.4M".
std::string format_count(double count);

}  // namespace hopmix::train

// Times several things against each other by Google Benchmark.
#pragma once

#include <functional>
#include <vector>

namespace hopmix::bench {

struct Work {
  std::function<void()> run;
  int repetitions = 1;
  bool once = false;  // a repetition is one run; else as many as take some 20 ms
};

struct InterleaveOptions {
  bool wall = false;                        // wall time; else the CPU time of this thread
  std::function<bool()> stop = {};          // asked before each run
  std::function<void(double)> report = {};  // told which part, 0 to 1, has begun
};

/// Seconds of one run for each repetition of each work. The repetitions of all are mixed at random:
/// a machine that slows down slows all of them. Shorter lists, in part or whole, if it was stopped.
std::vector<std::vector<double>> time_interleaved(const std::vector<Work>& works,
                                                  const InterleaveOptions& options);

}  // namespace hopmix::bench

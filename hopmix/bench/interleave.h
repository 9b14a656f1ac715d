// Times several pieces of work against each other with Google Benchmark.
#pragma once

#include <functional>
#include <vector>

namespace hopmix::bench {

struct Work {
  std::function<void()> run;
  int repetitions = 1;
  bool once = false;  // a repetition is one run; otherwise as many as take about 20 ms
};

struct InterleaveOptions {
  bool wall = false;                        // wall time; otherwise CPU time of this thread
  std::function<bool()> stop = {};          // called before each run
  std::function<void(double)> report = {};  // called with the fraction done, 0 to 1
};

/// Seconds per run, for each repetition of each piece of work. All repetitions are interleaved at
/// random, so that a machine that slows down slows all of them. If stopped, some lists are shorter
/// or empty.
std::vector<std::vector<double>> time_interleaved(const std::vector<Work>& works,
                                                  const InterleaveOptions& options);

}  // namespace hopmix::bench

#include "hopmix/bench/interleave.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>

namespace hopmix::bench {
namespace {

constexpr double kMinSeconds = 0.02;  // per repetition

// Collects the times and prints nothing. A benchmark's name is the index of its work.
class Collector : public benchmark::BenchmarkReporter {
 public:
  Collector(std::vector<std::vector<double>>& times, bool wall) : times_(times), wall_(wall) {}

  bool ReportContext(const Context&) override { return true; }

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred || run.iterations == 0) continue;
      const double total = wall_ ? run.real_accumulated_time : run.cpu_accumulated_time;
      times_[std::stoul(run.run_name.function_name)].push_back(total /
                                                               static_cast<double>(run.iterations));
    }
  }

 private:
  std::vector<std::vector<double>>& times_;
  bool wall_;
};

// The library accepts this only as a flag.
void mix_repetitions() {
  std::string program = "hopmix", flag = "--benchmark_enable_random_interleaving=true";
  char* arguments[] = {program.data(), flag.data(), nullptr};
  int count = 2;
  benchmark::Initialize(&count, arguments);
}

}  // namespace

std::vector<std::vector<double>> time_interleaved(const std::vector<Work>& works,
                                                  const InterleaveOptions& options) {
  std::vector<std::vector<double>> times(works.size());
  if (works.empty()) return times;
  mix_repetitions();
  double begun = 0, total = 0;
  for (const Work& work : works) total += work.repetitions;
  for (size_t i = 0; i < works.size(); ++i) {
    const Work& work = works[i];
    const auto body = [&](benchmark::State& state) {
      if (options.report) options.report(std::min(begun / total, 1.0));
      ++begun;
      // One run that does not count: the others have evicted the caches meanwhile.
      if (!work.once) work.run();
      for (auto _ : state) {
        if (options.stop && options.stop()) {
          state.SkipWithError("stopped");
          break;
        }
        work.run();
      }
    };
    benchmark::internal::Benchmark* added =
        benchmark::RegisterBenchmark(std::to_string(i).c_str(), body);
    added->Repetitions(work.repetitions);
    if (work.once) {
      added->Iterations(1);
    } else {
      added->MinTime(kMinSeconds);
    }
    if (options.wall) added->UseRealTime();
  }
  Collector collector(times, options.wall);
  benchmark::RunSpecifiedBenchmarks(&collector);
  benchmark::ClearRegisteredBenchmarks();
  return times;
}

}  // namespace hopmix::bench

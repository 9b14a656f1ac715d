#include "hopmix/bench/measure.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "hopmix/bench/allocations.h"
#include "hopmix/bench/interleave.h"

namespace hopmix::bench {
namespace {

constexpr int kRepetitions = 11, kFewest = 3;
constexpr double kBudget = 3;       // seconds per case for all repetitions
constexpr double kFirstCounts = 8;  // seconds; a first run this long is the measurement
constexpr double kOnce = 0.02;      // seconds; a run this long is a repetition by itself
// Length of a warm-up run. Libraries used by the peers allocate lasting buffers that are not part
// of a call's own memory.
constexpr int64_t kTiny = 3, kTinyPeer = 1024;

// Seconds: CPU time of this thread if it does all the work, which other programs hardly affect.
double now(bool wall) {
  timespec time{};
  clock_gettime(wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A case at a shape, with its inputs.
struct Job {
  Case which;
  Problem problem;
  Tensor seed;  // the gradient of the output

  Job(const Case& one, const Shape& shape, at::ScalarType dtype)
      : which(one), problem(make_problem(one, shape, dtype)) {
    const c10::AutoGradMode off(false);
    const int64_t t = shape.length, h = shape.heads;
    seed = one.heads_first ? at::randn({shape.batch, h, t, shape.width})
                           : at::randn({shape.batch, t, h, shape.width});
    seed = seed.to(dtype);
  }

  // Returns the size of the outputs in bytes.
  int64_t run(bool backward) const {
    const c10::AutoGradMode mode(backward);
    const Tensor y = problem.forward(problem.inputs);
    auto bytes = static_cast<int64_t>(y.nbytes());
    if (!backward) return bytes;
    for (const Tensor& x : torch::autograd::grad({y}, problem.inputs, {seed})) {
      bytes += static_cast<int64_t>(x.nbytes());
    }
    return bytes;
  }
};

int choose_repetitions(const Settings& settings, double seconds) {
  if (settings.repetitions) return *settings.repetitions;
  return std::clamp(static_cast<int>(kBudget / seconds), kFewest, kRepetitions);
}

}  // namespace

const char* direction_name(bool backward) { return backward ? "forward+backward" : "forward"; }

double Result::tokens_per_second() const {
  return static_cast<double>(shape.batch * shape.length) / seconds;
}

std::optional<double> Result::useful_bytes() const {
  if (!which.gathers() || backward) return {};
  return static_cast<double>(reads) * static_cast<double>(2 * shape.width * sizeof(float));
}

std::optional<double> Result::useful_gb_per_s() const {
  const auto bytes = useful_bytes();
  if (!bytes) return {};
  return *bytes / seconds / 1e9;
}

int64_t Result::working_set_bytes() const {
  return shape.length * 2 * shape.width * static_cast<int64_t>(sizeof(float));
}

std::optional<double> Result::extra_matrices() const {
  if (!extra_bytes) return {};
  const double rows = static_cast<double>(shape.length);
  return static_cast<double>(*extra_bytes) /
         (static_cast<double>(shape.batch * shape.heads * sizeof(float)) * rows * rows);
}

void measure(const std::vector<Case>& cases, const Shape& shape, const Settings& settings,
             const Hooks& hooks, std::vector<Result>& results, std::vector<LeftOut>& left_out) {
  at::set_num_threads(settings.threads);
  const bool wall = settings.threads > 1;
  const std::string where = "T " + std::to_string(shape.length) + ": ";
  const auto say = [&](const std::string& what) {
    if (hooks.report) hooks.report(where + what);
  };
  const auto stopped = [&] { return hooks.stop && hooks.stop(); };

  std::vector<Job> jobs;
  std::vector<LeftOut> missing;
  jobs.reserve(cases.size());
  for (const Case& one : cases) {
    if (shape.length > one.longest()) {
      missing.push_back({one.name, shape.length, one.longest(), one.limit_reason()});
      continue;
    }
    say(one.name + ", inputs");
    jobs.emplace_back(one, shape, settings.dtype);
  }

  // A first run of each measures its memory and estimates its time.
  std::vector<Result> found;
  std::vector<Work> works;
  std::vector<size_t> work_of;  // the result that each piece of work belongs to
  for (const Job& job : jobs) {
    Shape tiny = shape;
    tiny.batch = tiny.heads = 1;
    tiny.length = std::min(shape.length, job.which.is_peer ? kTinyPeer : kTiny);
    const Job warm_up(job.which, tiny, settings.dtype);
    const int64_t reads = shape.batch * shape.heads * job.which.reads(shape.length);
    for (const bool backward : {false, true}) {
      if (!(backward ? settings.backward : settings.forward)) continue;
      if (stopped()) return;
      say(job.which.name + ", " + direction_name(backward) + ", first run");
      warm_up.run(backward);
      Result result;
      result.which = job.which;
      result.shape = shape;
      result.backward = backward;
      result.reads = reads;
      int64_t outputs = 0;
      double seconds = 0;
      // In a new thread, which has no scratch memory left over from earlier calls.
      const auto peak = peak_allocated([&] {
        std::thread([&] {
          at::set_num_threads(settings.threads);
          const double from = now(wall);
          outputs = job.run(backward);
          seconds = now(wall) - from;
        }).join();
      });
      if (peak) result.extra_bytes = std::max(*peak - outputs, int64_t{0});
      if (seconds >= kFirstCounts && !settings.repetitions) {
        result.times = {seconds};
      } else {
        if (seconds < 10 * kOnce) {  // the first run also had to get memory from the system
          const double again = now(wall);
          job.run(backward);
          seconds = now(wall) - again;
        }
        works.push_back({.run = [&job, backward] { job.run(backward); },
                         .repetitions = choose_repetitions(settings, seconds),
                         .once = seconds >= kOnce});
        work_of.push_back(found.size());
      }
      found.push_back(std::move(result));
    }
  }

  const auto times = time_interleaved(
      works, {.wall = wall, .stop = hooks.stop, .report = [&](double part) {
                say(std::to_string(static_cast<int>(100 * part)) + "% of repetitions");
              }});
  if (stopped()) return;
  for (size_t i = 0; i < works.size(); ++i) found[work_of[i]].times = times[i];
  for (Result& result : found) {
    result.seconds = median(result.times);
    results.push_back(std::move(result));
  }
  left_out.insert(left_out.end(), missing.begin(), missing.end());
}

void compare_with_peers(std::vector<Result>& results) {
  const auto peer_of = [&](const Result& of, const char* name) -> const Result* {
    for (const Result& peer : results) {
      if (peer.which.name == name && peer.shape == of.shape && peer.backward == of.backward) {
        return &peer;
      }
    }
    return nullptr;
  };
  for (Result& result : results) {
    if (const Result* peer = peer_of(result, kAttention)) {
      result.over_attention = peer->seconds / result.seconds;
    }
    if (const Result* peer = peer_of(result, kDenseSolve)) {
      result.over_dense_solve = peer->seconds / result.seconds;
    }
  }
}

}  // namespace hopmix::bench

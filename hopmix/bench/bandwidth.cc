#include "hopmix/bench/bandwidth.h"

#include <omp.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <random>

#include "hopmix/bench/machine.h"
#include "hopmix/kernels/base/load_bandwidth.h"

namespace hopmix::bench {
namespace {

constexpr int64_t kWidth = 128;  // floats per row: 512 bytes
constexpr int64_t kRowBytes = 4 * kWidth;
constexpr int64_t kPassBytes = 1 << 22;  // at least, per pass: about 20 us in the fastest cache
constexpr int kFewest = 3, kMost = 20;   // number of passes
constexpr double kBudget = 0.1;          // seconds for passes beyond the fewest

// Seconds: CPU time of this thread if it is the only one, as for the benchmarks.
double now(int threads) {
  timespec time{};
  clock_gettime(threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// One thread's part of the memory to read: rows, and the order to read them in.
struct Part {
  const float* data;
  std::vector<int32_t> order;

  Part(const float* from, int64_t rows) : data(from), order(rows) {
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(0));
  }
  int64_t rows() const { return static_cast<int64_t>(order.size()); }
};

// Bytes per second of the best pass, summed over threads; `read` reads a part once.
template <typename Read>
double best_rate(const std::vector<Part>& parts, const Read& read) {
  const int threads = static_cast<int>(parts.size());
  const int64_t bytes = parts.front().rows() * kRowBytes;
  const int64_t times = std::max(kPassBytes / bytes, int64_t{1});
  const double begin = now(threads);
  double best = 0;
  float sum = 0;  // use the loaded values, so that the loads are not removed
  for (int pass = 0; pass < kMost; ++pass) {
    if (pass >= kFewest && now(threads) - begin > kBudget) break;
    double start = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
      const Part& mine = parts[omp_get_thread_num()];
#pragma omp barrier
#pragma omp master
      start = now(threads);
      for (int64_t i = 0; i < times; ++i) sum += read(mine);
    }
    best = std::max(best, static_cast<double>(bytes * times * threads) / (now(threads) - start));
  }
  return sum > 0 ? best : 0;
}

bool is_shared(const Level& level) { return level.name == "L3" || level.name == "memory"; }

}  // namespace

std::vector<Level> measure_levels(const std::vector<int>& threads) {
  const Caches caches = find_caches();
  const auto plan = plan_levels(caches.l1, caches.l2, caches.l3, free_memory());
  // The number of rows in one thread's part.
  const auto rows_of = [](const Level& level, int count) {
    const int64_t rows = level.buffer_bytes / kRowBytes;
    return std::max(is_shared(level) ? rows / count : rows, int64_t{1});
  };
  int64_t most = 0;
  for (const Level& level : plan) {
    for (const int count : threads) most = std::max(most, count * rows_of(level, count));
  }
  const std::vector<float> memory(most * kWidth, 1.0F);

  std::vector<Level> levels;
  for (const int count : threads) {
    for (Level level : plan) {
      level.threads = count;
      const int64_t rows = rows_of(level, count);
      std::vector<Part> parts;
      for (int i = 0; i < count; ++i) parts.emplace_back(memory.data() + i * rows * kWidth, rows);
      level.in_order_gb_per_s = 1e-9 * best_rate(parts, [](const Part& part) {
                                  return kernels::sum_in_order(part.data, part.rows() * kWidth);
                                });
      level.rows_gb_per_s =
          1e-9 * best_rate(parts, [](const Part& part) {
            return kernels::sum_of_rows(part.data, kWidth, part.order.data(), part.rows());
          });
      levels.push_back(level);
    }
  }
  return levels;
}

}  // namespace hopmix::bench

#include "hopmix/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace hopmix::bench {

double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::optional<int64_t> crossover(const std::vector<Timing>& ours, const std::vector<Timing>& peer) {
  std::map<int64_t, double> peers, ratios;
  for (const Timing& timing : peer) peers[timing.length] = timing.seconds;
  for (const Timing& timing : ours) {
    const auto found = peers.find(timing.length);
    if (found != peers.end()) ratios[timing.length] = found->second / timing.seconds;
  }
  std::optional<int64_t> from;
  for (auto at = ratios.rbegin(); at != ratios.rend() && at->second > 1; ++at) from = at->first;
  return from;
}

std::vector<Level> plan_levels(int64_t l1, int64_t l2, int64_t l3, int64_t free_memory) {
  constexpr int64_t kRow = 512;
  const auto whole_rows = [](int64_t bytes) { return std::max(bytes / kRow, int64_t{1}) * kRow; };
  std::vector<Level> levels;
  const auto add = [&](const char* name, int64_t capacity, int64_t buffer) {
    levels.push_back(
        {.name = name, .capacity_bytes = capacity, .buffer_bytes = whole_rows(buffer)});
  };
  if (l1 > 0) add("L1", l1, l1 / 2);
  if (l2 > l1) add("L2", l2, l2 / 2);
  if (l3 > l2) {
    const double mean =
        std::sqrt(static_cast<double>(std::max(l2, int64_t{1})) * static_cast<double>(l3));
    add("L3", l3, std::min(static_cast<int64_t>(mean), l3 / 2));
  }
  const int64_t largest = std::max({l1, l2, l3, int64_t{1} << 25});
  add("memory", 0, std::min({2 * largest, int64_t{1} << 30, free_memory / 4}));
  return levels;
}

const Level* level_of(const std::vector<Level>& levels, int64_t bytes, int threads) {
  const Level* best = nullptr;
  for (const Level& level : levels) {
    if (level.threads != threads) continue;
    if (level.capacity_bytes != 0 && level.capacity_bytes < bytes) continue;
    const bool smaller = best != nullptr && level.capacity_bytes != 0 &&
                         (best->capacity_bytes == 0 || level.capacity_bytes < best->capacity_bytes);
    if (best == nullptr || smaller) best = &level;
  }
  return best;
}

}  // namespace hopmix::bench

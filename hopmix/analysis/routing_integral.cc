#include "hopmix/analysis/routing_integral.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace hopmix {
namespace {

constexpr int64_t kCycle = 20;   // rounds from the lowest sharpness to the highest
constexpr double kLowest = 0.5;  // weights grow by exp(0.5) per path
constexpr double kHighest = 8;
constexpr double kFloor = -600;        // bounds exponents, so that weights stay positive
constexpr double kShuffleLoad = 1e-3;  // breaks ties between equally loaded tokens

class Search {
 public:
  Search(const CopyProblem& problem, std::span<const Flow> flows, uint64_t seed)
      : problem_(problem),
        finder_(problem),
        random_(seed),
        load_(problem.tokens()),
        noise_(problem.tokens()),
        weight_(problem.tokens()) {
    for (const Flow& flow : flows) {
      const auto largest = std::max_element(flow.shares.begin(), flow.shares.end());
      paths_.push_back(flow.paths[largest - flow.shares.begin()]);
      for (const int32_t v : paths_.back()) ++load_[v];
    }
  }

  const std::vector<Path>& paths() const { return paths_; }
  int64_t congestion() const { return *std::max_element(load_.begin(), load_.end()); }

  void round(double sharpness) {
    sharpness_ = sharpness;
    top_ = congestion();
    for (size_t v = 0; v < load_.size(); ++v) {
      noise_[v] = kShuffleLoad * static_cast<double>(random_() >> 11) * 0x1p-53;
      reweigh(v);
    }
    std::vector<int64_t> order(problem_.inputs);
    std::iota(order.begin(), order.end(), 0);
    for (size_t k = order.size(); k > 1; --k) std::swap(order[k - 1], order[random_() % k]);
    for (const int64_t c : order) {
      lay(c, -1);
      finder_.weigh(c, weight_);
      paths_[c] = finder_.path();
      lay(c, 1);
    }
  }

 private:
  void lay(int64_t c, int64_t count) {
    for (const int32_t v : paths_[c]) {
      load_[v] += count;
      reweigh(v);
    }
  }

  void reweigh(size_t v) {
    const double above = static_cast<double>(load_[v] - top_) + noise_[v];
    weight_[v] = std::exp(std::max(kFloor, sharpness_ * above));
  }

  const CopyProblem& problem_;
  PathFinder finder_;
  std::mt19937_64 random_;
  std::vector<Path> paths_;
  std::vector<int64_t> load_;
  std::vector<double> noise_, weight_;
  double sharpness_ = 0;
  int64_t top_ = 0;
};

}  // namespace

IntegralRouting route_by_search(const CopyProblem& problem, std::span<const Flow> flows,
                                const IntegralOptions& options) {
  IntegralRouting best;
  if (problem.inputs == 0) return best;
  Search search(problem, flows, options.seed);
  best = {search.paths(), search.congestion()};
  // Slightly less, in case rounding lifted the lower bound above an integer.
  const auto goal = static_cast<int64_t>(std::ceil(options.lower * (1 - 1e-9)));
  for (int64_t round = 1; round <= options.max_rounds && best.congestion > goal; ++round) {
    const double step = static_cast<double>((round - 1) % kCycle) / (kCycle - 1);
    search.round(kLowest * std::pow(kHighest / kLowest, step));
    if (search.congestion() < best.congestion) best = {search.paths(), search.congestion()};
    if (options.progress && !options.progress(round, best.congestion)) break;
  }
  return best;
}

}  // namespace hopmix

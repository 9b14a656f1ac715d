#include "hopmix/analysis/routing_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace hopmix {
namespace {

constexpr double kNegligible = 1e-9;  // drop paths with a smaller share, scale up the others

// Loads, and weights exp(a * (load - top)) kept in step with them.
class Tokens {
 public:
  explicit Tokens(std::vector<double> load) : load_(std::move(load)), weight_(load_.size()) {}

  void set_sharpness(double a) {
    a_ = a;
    top_ = max_load();
    for (size_t v = 0; v < load_.size(); ++v) reweigh(v);
  }
  double max_load() const { return *std::max_element(load_.begin(), load_.end()); }
  double sharpness() const { return a_; }
  std::span<const double> weights() const { return weight_; }
  double weight(int32_t v) const { return weight_[v]; }
  void add(int32_t v, double flow) {
    load_[v] += flow;
    reweigh(v);
  }

 private:
  // Bounded below, so that weights can be divided.
  void reweigh(size_t v) { weight_[v] = std::exp(std::max(-600.0, a_ * (load_[v] - top_))); }

  std::vector<double> load_, weight_;
  double a_ = 0, top_ = 0;
};

// Calls left(v) for tokens on p alone and right(v) for tokens on q alone.
template <class Left, class Right>
void differ(const Path& p, const Path& q, Left left, Right right) {
  size_t a = 0, b = 0;
  while (a < p.size() || b < q.size()) {
    if (b == q.size() || (a < p.size() && p[a] > q[b])) {
      left(p[a++]);
    } else if (a == p.size() || q[b] > p[a]) {
      right(q[b++]);
    } else {
      ++a, ++b;
    }
  }
}

// Moves flow from path p to path q of one input. With x moved, the weights that change sum to
// P exp(-a x) + Q exp(a x), least at x = log(P / Q) / 2a.
void exchange(Flow& flow, size_t p, size_t q, Tokens& tokens) {
  double from = 0, to = 0;
  differ(
      flow.paths[p], flow.paths[q], [&](int32_t v) { from += tokens.weight(v); },
      [&](int32_t v) { to += tokens.weight(v); });
  if (from <= to) return;
  const double best = to > 0 ? std::log(from / to) / (2 * tokens.sharpness()) : flow.shares[p];
  const double x = std::min(flow.shares[p], best);
  differ(
      flow.paths[p], flow.paths[q], [&](int32_t v) { tokens.add(v, -x); },
      [&](int32_t v) { tokens.add(v, x); });
  flow.shares[p] -= x;
  flow.shares[q] += x;
}

void drop_negligible(Flow& flow) {
  size_t kept = 0;
  double total = 0;
  for (size_t p = 0; p < flow.paths.size(); ++p) {
    if (flow.shares[p] < kNegligible) continue;
    total += flow.shares[p];
    if (kept != p) flow.paths[kept] = std::move(flow.paths[p]);
    flow.shares[kept++] = flow.shares[p];
  }
  flow.paths.resize(kept);
  flow.shares.resize(kept);
  for (double& share : flow.shares) share /= total;
}

void improve(int64_t c, Flow& flow, PathFinder& finder, Tokens& tokens) {
  finder.weigh(c, tokens.weights());
  Path lightest = finder.path();
  size_t q = std::find(flow.paths.begin(), flow.paths.end(), lightest) - flow.paths.begin();
  if (q == flow.paths.size()) {
    flow.paths.push_back(std::move(lightest));
    flow.shares.push_back(0);
  }
  for (size_t p = 0; p < flow.paths.size(); ++p) {
    if (p != q) exchange(flow, p, q, tokens);
  }
  drop_negligible(flow);
}

}  // namespace

double dual_bound(const CopyProblem& problem, std::span<const double> weight) {
  PathFinder finder(problem);
  double paths = 0;
  for (int64_t c = 0; c < problem.inputs; ++c) paths += finder.weigh(c, weight);
  return paths / std::accumulate(weight.begin(), weight.end(), 0.0);
}

FractionalRouting route_by_weights(const CopyProblem& problem, const WeightOptions& options) {
  FractionalRouting best;
  best.lower = options.lower;
  if (problem.inputs == 0) return best;

  PathFinder finder(problem);
  std::vector<Flow> flows(problem.inputs);
  const std::vector<double> ones(problem.tokens(), 1.0);
  for (int64_t c = 0; c < problem.inputs; ++c) {
    finder.weigh(c, ones);
    flows[c] = {{finder.path()}, {1.0}};
  }
  best.flows = flows;
  Tokens tokens(loads(problem, flows));
  best.congestion = tokens.max_load();

  const auto gap = [&] { return (best.congestion - best.lower) / best.congestion; };
  double sharpness = 0;
  for (int64_t round = 1; round <= options.max_rounds && gap() > options.gap; ++round) {
    // The sum of weights overestimates the largest load by at most log(tokens) / a: half the gap.
    const double log_tokens = std::log(static_cast<double>(problem.tokens()));
    sharpness = std::max(sharpness, 2 * log_tokens / (best.congestion - best.lower));
    tokens.set_sharpness(sharpness);
    for (int64_t c = 0; c < problem.inputs; ++c) improve(c, flows[c], finder, tokens);
    tokens = Tokens(loads(problem, flows));  // recomputed, to avoid drift
    tokens.set_sharpness(sharpness);
    if (tokens.max_load() < best.congestion) {
      best.congestion = tokens.max_load();
      best.flows = flows;
    }
    best.lower = std::max(best.lower, dual_bound(problem, tokens.weights()));
    if (options.progress && !options.progress(round, best.lower, best.congestion)) break;
  }
  return best;
}

}  // namespace hopmix

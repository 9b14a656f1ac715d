#include "hopmix/analysis/routing_lp.h"

#include <ClpSimplex.hpp>
#include <algorithm>
#include <cmath>
#include <numeric>

namespace hopmix {
namespace {

constexpr double kExact = 1e-9;  // relative gap at which the optimum counts as found

// The linear program on the paths known so far, scaled so that it needs no phase 1:
//   maximize r, subject to: the flow through each token <= 1 (rows 0 .. tokens-1), and
//   r - (the flow of input c) <= 0 (rows tokens + c); r and all flows >= 0.
// The least congestion with unit flows is 1 / r. The duals of the token rows, w >= 0, are the
// weights. Those of the inputs, z >= 0, sum to 1: a path of input c improves r if it weighs less
// than z_c.
class PathProgram {
 public:
  explicit PathProgram(const CopyProblem& problem) : problem_(problem), paths_(problem.inputs) {
    const int64_t tokens = problem.tokens(), rows = tokens + problem.inputs;
    model_.setLogLevel(0);
    model_.setOptimizationDirection(-1);
    model_.setPrimalTolerance(1e-9);
    model_.setDualTolerance(1e-9);
    model_.resize(static_cast<int>(rows), 0);
    for (int64_t row = 0; row < rows; ++row) {
      model_.setRowLower(static_cast<int>(row), -COIN_DBL_MAX);
      model_.setRowUpper(static_cast<int>(row), row < tokens ? 1 : 0);
    }
    std::vector<int> inputs(problem.inputs);
    std::iota(inputs.begin(), inputs.end(), static_cast<int>(tokens));
    const std::vector<double> ones(problem.inputs, 1.0);
    model_.addColumn(static_cast<int>(problem.inputs), inputs.data(), ones.data(), 0, COIN_DBL_MAX,
                     1);
  }

  void add(int64_t c, Path path) {
    std::vector<int> rows(path.begin(), path.end());
    std::vector<double> values(path.size(), 1.0);
    rows.push_back(static_cast<int>(problem_.tokens() + c));
    values.push_back(-1.0);
    paths_[c].emplace_back(std::move(path), model_.numberColumns());
    model_.addColumn(static_cast<int>(rows.size()), rows.data(), values.data(), 0, COIN_DBL_MAX, 0);
  }

  // False if Clp gives up.
  bool solve() { return model_.primal(1) == 0 && model_.isProvenOptimal(); }

  // Their sign is Clp's convention. Even wrong weights would prove a valid lower bound.
  std::vector<double> weights() const {
    std::vector<double> weight(problem_.tokens());
    for (size_t v = 0; v < weight.size(); ++v) {
      weight[v] = std::abs(model_.dualRowSolution()[v]);
    }
    return weight;
  }

  // The flows with rounding removed: not negative, and one unit per input.
  std::vector<Flow> flows() const {
    const double* value = model_.primalColumnSolution();
    std::vector<Flow> flows(paths_.size());
    for (size_t c = 0; c < paths_.size(); ++c) {
      double total = 0;
      for (const auto& [path, column] : paths_[c]) total += std::max(0.0, value[column]);
      for (const auto& [path, column] : paths_[c]) {
        if (value[column] <= 0) continue;
        flows[c].paths.push_back(path);
        flows[c].shares.push_back(value[column] / total);
      }
    }
    return flows;
  }

 private:
  const CopyProblem& problem_;
  ClpSimplex model_;
  std::vector<std::vector<std::pair<Path, int>>> paths_;  // per input, with their columns
};

}  // namespace

FractionalRouting route_exactly(const CopyProblem& problem, FractionalRouting best,
                                const LpOptions& options) {
  if (problem.inputs == 0) return best;
  PathProgram program(problem);
  for (int64_t c = 0; c < problem.inputs; ++c) {
    for (const Path& path : best.flows[c].paths) program.add(c, path);
  }
  PathFinder finder(problem);
  for (int64_t round = 1; round <= options.max_rounds; ++round) {
    if (best.congestion - best.lower <= kExact * best.congestion || !program.solve()) break;
    std::vector<Flow> flows = program.flows();
    const std::vector<double> load = loads(problem, flows);
    const double congestion = *std::max_element(load.begin(), load.end());
    if (congestion < best.congestion) {
      best.congestion = congestion;
      best.flows = std::move(flows);
    }
    const std::vector<double> weight = program.weights();
    double total = 0;
    for (int64_t c = 0; c < problem.inputs; ++c) {
      total += finder.weigh(c, weight);
      program.add(c, finder.path());
    }
    best.lower = std::max(best.lower, total / std::accumulate(weight.begin(), weight.end(), 0.0));
    if (options.progress && !options.progress(round, best.lower, best.congestion)) break;
  }
  return best;
}

}  // namespace hopmix

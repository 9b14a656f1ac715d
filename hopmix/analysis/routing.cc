#include "hopmix/analysis/routing.h"

#include <algorithm>
#include <limits>

namespace hopmix {

CopyProblem copy_problem(const Pattern& pattern) { return {to_csr(pattern), pattern.size() / 2}; }

std::vector<double> loads(const CopyProblem& problem, std::span<const Flow> flows) {
  std::vector<double> load(problem.tokens());
  for (const Flow& flow : flows) {
    for (size_t p = 0; p < flow.paths.size(); ++p) {
      for (const int32_t v : flow.paths[p]) load[v] += flow.shares[p];
    }
  }
  return load;
}

PathFinder::PathFinder(const CopyProblem& problem)
    : problem_(problem), distance_(problem.tokens()) {}

double PathFinder::weigh(int64_t c, std::span<const double> weight) {
  const Csr& reads = problem_.reads;
  const int64_t source = c + problem_.inputs;
  target_ = c;
  distance_[c] = weight[c];
  for (int64_t v = c + 1; v <= source; ++v) {
    double least = std::numeric_limits<double>::infinity();
    for (int64_t e = reads.row_ptr[v + 1]; e-- > reads.row_ptr[v] && reads.cols[e] >= c;) {
      least = std::min(least, distance_[reads.cols[e]]);
    }
    distance_[v] = least + weight[v];
  }
  return distance_[source];
}

Path PathFinder::path() const {
  const Csr& reads = problem_.reads;
  int32_t at = static_cast<int32_t>(target_ + problem_.inputs);
  Path path = {at};
  while (at > target_) {
    int32_t next = reads.cols[reads.row_ptr[at + 1] - 1];
    for (int64_t e = reads.row_ptr[at + 1]; e-- > reads.row_ptr[at] && reads.cols[e] >= target_;) {
      if (distance_[reads.cols[e]] < distance_[next]) next = reads.cols[e];
    }
    path.push_back(at = next);
  }
  return path;
}

}  // namespace hopmix

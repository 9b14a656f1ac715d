#include "hopmix/analysis/routing_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace hopmix {

DistanceBound distance_bound(const CopyProblem& problem, const std::function<bool()>& progress) {
  DistanceBound result;
  if (problem.inputs == 0) return result;
  PathFinder finder(problem);
  const std::vector<double> weight(problem.tokens(), 1.0);
  double visits = 0;
  for (int64_t c = 0; c < problem.inputs && (!progress || progress()); ++c) {
    const double tokens = finder.weigh(c, weight);
    result.unreachable += std::isinf(tokens);
    visits += tokens;
  }
  result.bound = visits / static_cast<double>(problem.tokens());
  return result;
}

double cut_bound(const CopyProblem& problem) {
  const Csr& reads = problem.reads;
  const int64_t n = problem.inputs;
  // j carries at the cuts t in [j, j + n) with t < i <= t + n for a reader i. This is a union of
  // intervals, counted by the changes at each cut. done[j] is the first cut not yet counted for j.
  struct Change {
    int64_t carriers = 0, outputs = 0;  // outputs among the carriers
  };
  std::vector<Change> change(problem.tokens() + 1);
  std::vector<int64_t> done(problem.tokens());
  std::iota(done.begin(), done.end(), 0);
  for (int64_t i = 0; i < problem.tokens(); ++i) {
    for (int64_t e = reads.row_ptr[i]; e < reads.row_ptr[i + 1]; ++e) {
      const int64_t j = reads.cols[e];
      const int64_t begin = std::max(done[j], i - n), end = std::min(i, j + n);
      if (begin >= end) continue;
      ++change[begin].carriers;
      --change[end].carriers;
      change[begin].outputs += j >= n;
      change[end].outputs -= j >= n;
      done[j] = end;
    }
  }
  double bound = 0;
  int64_t carriers = 0, outputs = 0;
  for (int64_t t = 0; t + 1 < problem.tokens(); ++t) {
    carriers += change[t].carriers;
    outputs += change[t].outputs;
    if (carriers == 0) return std::numeric_limits<double>::infinity();
    const int64_t crossing = std::min(t, n - 1) - std::max<int64_t>(0, t - n + 1) + 1;
    bound =
        std::max(bound, static_cast<double>(crossing + outputs) / static_cast<double>(carriers));
  }
  return bound;
}

}  // namespace hopmix

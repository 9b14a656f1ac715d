#include "hopmix/analysis/pareto.h"

namespace hopmix {

bool dominates(const std::vector<double>& a, const std::vector<double>& b) {
  bool below = false;
  for (size_t k = 0; k < a.size(); ++k) {
    if (!(a[k] <= b[k])) return false;
    below |= a[k] < b[k];
  }
  return below;
}

std::vector<bool> pareto_front(const std::vector<std::vector<double>>& points) {
  std::vector<bool> front(points.size(), true);
  for (size_t p = 0; p < points.size(); ++p) {
    for (size_t q = 0; q < points.size() && front[p]; ++q) {
      front[p] = !dominates(points[q], points[p]) && !(q < p && points[q] == points[p]);
    }
  }
  return front;
}

}  // namespace hopmix

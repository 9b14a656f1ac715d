#include "hopmix/analysis/capacity.h"

#include <cmath>
#include <string>

#include "hopmix/base/error.h"

namespace hopmix {
namespace {

void check(const char* name, int64_t value, int64_t least) {
  if (value >= least) return;
  throw Error(std::string(name) + " " + std::to_string(value) + " must be at least " +
              std::to_string(least));
}

}  // namespace

double topk_capacity(int64_t precision, int64_t width, int64_t layers, int64_t kappa) {
  check("precision", precision, 1);
  check("width", width, 1);
  check("layers", layers, 0);
  check("kappa", kappa, 0);
  return static_cast<double>(precision) * static_cast<double>(width) *
         (static_cast<double>(layers) + static_cast<double>(kappa) + 1);
}

double multihop_capacity(int64_t precision, int64_t width, const std::vector<int64_t>& widths) {
  check("precision", precision, 1);
  check("width", width, 1);
  if (widths.empty()) throw Error("widths must name at least one retrieval width, such as 8,1,1,1");
  double capacity = static_cast<double>(precision) * static_cast<double>(width) *
                    static_cast<double>(widths.size());
  for (const int64_t kappa : widths) {
    check("widths:", kappa, 1);
    capacity *= static_cast<double>(kappa);
  }
  return capacity;
}

std::optional<double> capacity_needed(double n, int64_t functions, int64_t hops) {
  if (!(n >= 1)) throw Error("n " + std::to_string(n) + " must be at least 1");
  check("functions", functions, 1);
  check("hops", hops, 1);
  if (functions <= hops) return std::nullopt;
  return std::pow(n, 1 / static_cast<double>(hops + 1));
}

std::optional<double> largest_domain(double capacity, int64_t functions, int64_t hops) {
  if (!(capacity > 0)) {
    throw Error("capacity " + std::to_string(capacity) + " must be above 0");
  }
  check("functions", functions, 1);
  check("hops", hops, 1);
  if (functions <= hops) return std::nullopt;
  return std::floor(std::pow(capacity, static_cast<double>(hops + 1)));
}

}  // namespace hopmix

#include "hopmix/analysis/cost.h"

#include <algorithm>
#include <span>

namespace hopmix {
namespace {

// `row(i)` returns the tokens that i reads. Called once for each i, ascending.
template <class Row>
Cost cost_of_rows(int64_t n, Row row) {
  Cost cost;
  std::vector<int64_t> last_reader(n);  // the token itself until a later token reads it
  for (int64_t i = 0; i < n; ++i) {
    last_reader[i] = i;
    const std::span<const int32_t> cols = row(i);
    for (const int32_t j : cols) last_reader[j] = i;
    cost.reads_total += static_cast<int64_t>(cols.size());
    cost.reads_max = std::max(cost.reads_max, static_cast<int64_t>(cols.size()));
  }
  // Token j is live after tokens j .. last_reader[j] - 1: prefix sums of +1 at j and -1 at
  // last_reader[j].
  cost.cache.assign(n, 0);
  for (int64_t j = 0; j < n; ++j) {
    ++cost.cache[j];
    --cost.cache[last_reader[j]];
  }
  for (int64_t i = 0; i < n; ++i) {
    if (i > 0) cost.cache[i] += cost.cache[i - 1];
    cost.cache_peak = std::max(cost.cache_peak, cost.cache[i]);
  }
  return cost;
}

}  // namespace

Cost cost(const Pattern& pattern) {
  std::vector<int32_t> cols;
  return cost_of_rows(pattern.size(), [&](int64_t i) -> std::span<const int32_t> {
    pattern.row(i, cols);
    return cols;
  });
}

Cost cost(const Csr& pattern) {
  return cost_of_rows(pattern.rows(), [&](int64_t i) {
    return std::span(pattern.cols)
        .subspan(pattern.row_ptr[i], pattern.row_ptr[i + 1] - pattern.row_ptr[i]);
  });
}

}  // namespace hopmix

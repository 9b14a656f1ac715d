#include "hopmix/pattern/offsets.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace hopmix {

std::vector<int64_t> fibonacci_offsets(int64_t n) {
  std::vector<int64_t> values;
  for (int64_t a = 1, b = 2; a < n;) {
    values.push_back(a);
    const int64_t next = a + b;
    a = b;
    b = next;
  }
  return values;
}

std::vector<int64_t> nlogn_offsets(int64_t n) {
  std::vector<int64_t> values;
  for (uint64_t k = 0;; ++k) {
    // Integer logarithms are computed exactly. Any other product is irrational; below 2^31 none is
    // closer than 2e-9 to a whole number, which long double resolves and double does not (k =
    // 18981554).
    const int64_t product =
        std::has_single_bit(k + 1)
            ? static_cast<int64_t>(k) * std::countr_zero(k + 1)
            : static_cast<int64_t>(std::ceil(static_cast<long double>(k) *
                                             std::log2(static_cast<long double>(k + 1))));
    const int64_t value = std::max(product + 1, values.empty() ? 1 : values.back() + 1);
    if (value >= n) return values;
    values.push_back(value);
  }
}

std::vector<int64_t> cached_spacing(const std::vector<int64_t>& offsets) {
  std::vector<int64_t> spacing;
  for (size_t k = 0; k < offsets.size(); ++k) {
    if (k == 0) {
      spacing.push_back(1);
      continue;
    }
    const int64_t a = spacing.back(), gap = offsets[k] - offsets[k - 1];
    spacing.push_back(a * ((gap + a - 1) / a));
  }
  return spacing;
}

}  // namespace hopmix

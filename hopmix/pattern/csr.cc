#include "hopmix/pattern/pattern.h"

namespace hopmix {

Csr to_csr(const Pattern& pattern) {
  Csr csr;
  csr.row_ptr.reserve(pattern.size() + 1);
  csr.row_ptr.push_back(0);
  std::vector<int32_t> row;
  for (int64_t i = 0; i < pattern.size(); ++i) {
    pattern.row(i, row);
    csr.cols.insert(csr.cols.end(), row.begin(), row.end());
    csr.row_ptr.push_back(static_cast<int64_t>(csr.cols.size()));
  }
  return csr;
}

}  // namespace hopmix

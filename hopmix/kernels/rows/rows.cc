#include "hopmix/kernels/rows/rows.h"

namespace hopmix::kernels {

ReadLayout::ReadLayout(const Rows& rows, const Sequences& sequences) {
  const int64_t longest = sequences.longest();
  row_ptr.assign(longest + 1, 0);
  std::vector<int32_t> scratch;
  for (int64_t i = 0; i < longest; ++i) {
    row_ptr[i + 1] = row_ptr[i] + static_cast<int64_t>(rows.row(i, scratch).size());
  }
  int64_t batch = 0;
  for (const Sequence& s : sequences.list) {
    if (s.batch != batch) {
      batch = s.batch;
      nnz = 0;
    }
    first.push_back(nnz);
    nnz += row_ptr[s.length];
  }
}

}  // namespace hopmix::kernels

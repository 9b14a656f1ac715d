#include "hopmix/kernels/rows.h"

#include <gtest/gtest.h>

namespace hopmix::kernels {
namespace {

TEST(Rows, ListAndPatternAgree) {
  for (const char* spec : {"dense", "2^k", "cached(k^2+1)", "random(3,1)", "global(2)|window(3)"}) {
    const Pattern pattern(spec, 100);
    const Csr csr = to_csr(pattern);
    const Rows listed(csr), made(pattern);
    std::vector<int32_t> one, two;
    for (int64_t i = 0; i < 100; ++i) {
      const auto x = listed.row(i, one), y = made.row(i, two);
      EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end())) << spec << " row " << i;
    }
  }
}

TEST(Rows, ReadLayoutCountsReads) {
  const Pattern dense("dense", 4);  // 0, 1, 2, 3 reads
  const ReadLayout batched(Rows(dense), Sequences::batched(3, 4));
  EXPECT_EQ(batched.row_ptr, (std::vector<int64_t>{0, 0, 1, 3, 6}));
  EXPECT_EQ(batched.first, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(batched.nnz, 6);

  const std::vector<int64_t> bounds = {0, 3, 3, 7, 9};  // lengths 3, 0, 4, 2
  const ReadLayout packed(Rows(dense), Sequences::packed(bounds));
  EXPECT_EQ(packed.first, (std::vector<int64_t>{0, 3, 3, 9}));
  EXPECT_EQ(packed.nnz, 10);
}

}  // namespace
}  // namespace hopmix::kernels

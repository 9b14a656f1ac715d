#include "hopmix/kernels/rows/rows.h"

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

TEST(Rows, WhatWasRetrievedKeepsItsOrder) {
  // Two heads, a sequence of 2 tokens and one of 1; head 1's lists are 10 higher.
  const std::vector<int32_t> lists = {-1, 0,  -1, 10, -1, 12,  //
                                      1,  -1, 0,  -1, 11, -1,  //
                                      -1, -1, -1, 10, 10, 12};
  const std::vector<int64_t> bounds = {0, 2, 3};
  const Sequences sequences = Sequences::packed(bounds);
  const RowsOfHeads heads(lists.data(), /*heads=*/4, /*lists=*/2, /*width=*/3, sequences);
  std::vector<int32_t> scratch;
  Csr made;
  const auto row = [&](int64_t sequence, int64_t head, int64_t i) {
    const auto span = heads.of(sequences.list[sequence], head).row(i, scratch);
    return std::vector<int32_t>(span.begin(), span.end());
  };
  EXPECT_EQ(row(0, 0, 0), std::vector<int32_t>{0});
  EXPECT_EQ(row(0, 1, 1), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(row(0, 2, 0), (std::vector<int32_t>{10, 12}));
  EXPECT_EQ(row(1, 0, 0), std::vector<int32_t>{});
  EXPECT_EQ(row(1, 3, 0), (std::vector<int32_t>{10, 10, 12}));
  const RowList both = heads.of(sequences.list[0], 0).list(0, 2, made);
  EXPECT_EQ(std::vector<int64_t>(both.row_ptr, both.row_ptr + 3), (std::vector<int64_t>{0, 1, 3}));
  EXPECT_EQ(std::vector<int32_t>(both.cols, both.cols + 3), (std::vector<int32_t>{0, 1, 0}));
  EXPECT_TRUE(heads.alike(0, 2) && heads.alike(2, 2) && !heads.alike(0, 3) && !heads.alike(1, 2));
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

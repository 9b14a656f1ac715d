#include "hopmix/nn/pattern_rows.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "hopmix/base/error.h"
#include "hopmix/pattern/matrix_market.h"

namespace hopmix::nn {
namespace {

TEST(PatternRows, ListsWhatIsSmallAndNamesTheRest) {
  PatternRows dense(Pattern("dense", 9)), powers(Pattern("2^k", 9));
  const ops::PatternArg few = dense.at(4);
  EXPECT_TRUE(torch::equal(few.row_ptr, torch::tensor({0, 0, 1, 3, 6}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(few.cols, torch::tensor({0, 0, 1, 0, 1, 2}, torch::kInt32)));
  EXPECT_TRUE(powers.at(16384).row_ptr.defined());

  // It would be half a GB as a list.
  const ops::PatternArg many = dense.at(16384);
  EXPECT_FALSE(many.row_ptr.defined());
  EXPECT_EQ(many.spec, "dense");
  EXPECT_FALSE(powers.at(int64_t{1} << 30).row_ptr.defined());

  EXPECT_EQ(dense.at(4).row_ptr.numel(), 5) << "a short text after a long one";
  EXPECT_EQ(dense.at(0).row_ptr.numel(), 1);
}

TEST(PatternRows, AListFitsItsLimitToTheByte) {
  // 8 bytes per row plus one, 4 per read.
  int64_t longest = 0;
  while (8 * (longest + 2) + 2 * longest * (longest + 1) <= PatternRows::kLargestList) ++longest;
  PatternRows dense(Pattern("dense", 9));
  EXPECT_TRUE(dense.at(longest).row_ptr.defined());
  EXPECT_FALSE(dense.at(longest + 1).row_ptr.defined());
}

TEST(PatternRows, NamesLongPatternsWithASmallCache) {
  PatternRows cached(Pattern("cached(2^k)", 9)), wide(Pattern("window(1000)", 9)),
      plain(Pattern("2^k", 9));
  EXPECT_TRUE(cached.at(2047).row_ptr.defined());
  EXPECT_FALSE(cached.at(2048).row_ptr.defined());
  EXPECT_TRUE(wide.at(2048).row_ptr.defined());
  EXPECT_TRUE(plain.at(2048).row_ptr.defined());
}

// The longest document differs between batches.
TEST(PatternRows, OfPackedSequencesAtLeastTheLongest) {
  const auto packing = [](const std::vector<int64_t>& ends) {
    return Packing(torch::tensor(ends, torch::kInt64), torch::zeros({1, 20}));
  };
  PatternRows dense(Pattern("dense", 9));
  const ops::PatternArg nine = dense.at(20, packing({0, 9, 12, 20}));
  EXPECT_EQ(nine.row_ptr.numel(), 10);
  EXPECT_EQ(dense.at(20, packing({0, 8, 12, 20})).cols.data_ptr(), nine.cols.data_ptr())
      << "the rows of a longer one begin with those of a shorter one";
  EXPECT_EQ(dense.at(20, packing({0, 11, 20})).row_ptr.numel(), 12);
  EXPECT_EQ(dense.at(20, Packing()).row_ptr.numel(), 21);
  EXPECT_EQ(dense.at(9, Packing()).row_ptr.numel(), 10);
}

// An operator given the spec would read the file in every call.
TEST(PatternRows, AFileIsAlwaysAList) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / ("rows " + std::to_string(getpid()) + ".mtx");
  write_matrix_market(file, to_csr(Pattern("k+1", 3000)));
  PatternRows rows(Pattern("dag(" + file.string() + ")", 3000));
  std::filesystem::remove(file);
  EXPECT_EQ(rows.at(3000).cols.numel(), 3000 * 2999 / 2) << "18 MB";
  EXPECT_EQ(rows.at(10).cols.numel(), 45);
  EXPECT_THROW(rows.at(3001), Error);
}

}  // namespace
}  // namespace hopmix::nn

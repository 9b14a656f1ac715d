#include "hopmix/kernels/rows/row_blocks.h"

#include <gtest/gtest.h>

namespace hopmix::kernels {
namespace {

// What is computed for each read of a block lies in scratch memory.
TEST(BlockPlan, ATeamsBlocksAreShortWhereRowsAreLong) {
  for (const int64_t length : {8192, 8193, 12289}) {  // the last row reads 4095 tokens, or none
    const Pattern pattern("blocks(4096)", length);
    EXPECT_EQ(BlockPlan(Rows(pattern), length, 2).block, 32) << length;
  }
}

TEST(BlockPlan, ATeamsBlocksAreLongWhereRowsAreShort) {
  const Pattern pattern("2^k", 4096);
  EXPECT_EQ(BlockPlan(Rows(pattern), 4096, 2).block, 1024);
}

}  // namespace
}  // namespace hopmix::kernels

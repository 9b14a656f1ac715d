#include "hopmix/tasks/copy.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

namespace hopmix::tasks {
namespace {

// The definition, token by token: x_1 .. x_m SEP x_1 .. x_{m-1}, and from SEP on the next token as
// target.
TEST(Copy, IsItsDefinition) {
  for (const int64_t symbols : {2, 4, 20}) {
    for (const int64_t m : {1, 2, 31, 32, 50, 500}) {
      const Task task = copy_task({.symbols = symbols, .m = m});
      EXPECT_EQ(task.length, 2 * m);
      EXPECT_EQ(task.vocabulary, symbols + 1);
      const Batch batch = task.sample(5, 3);
      const auto tokens = batch.tokens.accessor<int64_t, 2>();
      const auto targets = batch.targets.accessor<int64_t, 2>();
      for (int64_t b = 0; b < 5; ++b) {
        for (int64_t i = 0; i < m; ++i) {
          EXPECT_LT(tokens[b][i], symbols);
          EXPECT_EQ(targets[b][i], kNoTarget);
        }
        EXPECT_EQ(tokens[b][m], symbols);
        for (int64_t i = m; i < 2 * m; ++i) {
          EXPECT_EQ(targets[b][i], tokens[b][i - m]);
          if (i + 1 < 2 * m) {
            EXPECT_EQ(tokens[b][i + 1], targets[b][i]);
          }
        }
      }
      EXPECT_TRUE(batch.slices.eq(kNoSlice).all().item<bool>());
    }
  }
}

TEST(Copy, SymbolsAreUniformAtEveryPlace) {
  const int64_t n = 20000;
  const Batch batch = copy_task({.symbols = 4, .m = 3}).sample(n, 6);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t symbol = 0; symbol < 4; ++symbol) {
      const double share =
          batch.tokens.select(1, i).eq(symbol).to(torch::kDouble).mean().item<double>();
      EXPECT_NEAR(share, 0.25, 4 * std::sqrt(0.25 * 0.75 / n)) << i << " " << symbol;
    }
  }
  // Neighbours are independent: a pair repeats one time in four.
  const double repeats = batch.tokens.select(1, 0)
                             .eq(batch.tokens.select(1, 1))
                             .to(torch::kDouble)
                             .mean()
                             .item<double>();
  EXPECT_NEAR(repeats, 0.25, 4 * std::sqrt(0.25 * 0.75 / n));
}

}  // namespace
}  // namespace hopmix::tasks

#include "hopmix/tasks/function_composition.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>

namespace hopmix::tasks {
namespace {

int64_t at(const at::Tensor& t, int64_t row, int64_t i, int64_t j) {
  return t[row][i][j].item<int64_t>();
}

// Computes every answer by following the written values.
TEST(FunctionComposition, AnswersAreTheCompositions) {
  for (const FunctionCompositionConfig& config :
       {FunctionCompositionConfig{},
        {.functions = 3, .least_n = 2, .most_n = 4},
        {.functions = 6, .least_n = 7, .most_n = 7, .labels = 10}}) {
    const Task task = function_composition_task(config);
    const int64_t readouts = config.functions - 1;
    ASSERT_EQ(task.readouts, readouts);
    for (const uint64_t seed : {1, 2, 3}) {
      const Batch batch = task.sample(2, seed);
      const int64_t n = batch.tokens.size(1) / config.functions;
      for (int64_t row = 0; row < 2; ++row) {
        const int64_t label = at(batch.tokens, row, 0, 1);
        for (int64_t i = 0; i < config.functions; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            EXPECT_EQ(at(batch.tokens, row, i * n + j, 1), label + i);
            EXPECT_EQ(at(batch.tokens, row, i * n + j, 2), j);
            int64_t value = at(batch.tokens, row, i * n + j, 0);
            for (int64_t m = 1; m <= readouts; ++m) {
              const int64_t place = i * n + j;
              if (m <= i) value = at(batch.tokens, row, (i - m) * n + value, 0);
              EXPECT_EQ(at(batch.targets, row, place, m - 1), m <= i ? value : kNoTarget);
              EXPECT_EQ(at(batch.slices, row, place, m - 1), m <= i ? m : kNoSlice);
            }
          }
        }
      }
    }
  }
}

TEST(FunctionComposition, DrawsEverySizeAndLabel) {
  const Task task =
      function_composition_task({.functions = 2, .least_n = 3, .most_n = 6, .labels = 4});
  std::set<int64_t> sizes, labels;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Batch batch = task.sample(1, seed);
    sizes.insert(batch.tokens.size(1) / 2);
    labels.insert(at(batch.tokens, 0, 0, 1));
  }
  EXPECT_EQ(sizes, (std::set<int64_t>{3, 4, 5, 6}));
  EXPECT_EQ(labels, (std::set<int64_t>{0, 1, 2}));
}

}  // namespace
}  // namespace hopmix::tasks

#include "hopmix/tasks/mad_memory.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <set>

#include "hopmix/tasks/testing.h"

namespace hopmix::tasks {
namespace {

TEST(SelectiveCopying, IsItsDefinition) {
  for (const SelectiveCopyingConfig& config :
       std::vector<SelectiveCopyingConfig>{{},
                                           {.vocabulary = 4, .length = 3, .m = 1},
                                           {.length = 65, .m = 32},
                                           {.length = 999, .m = 5}}) {
    const Task task = selective_copying_task(config);
    const int64_t blank = config.vocabulary - 2, copy = config.vocabulary - 1;
    EXPECT_EQ(task.chance, 100.0 / static_cast<double>(blank));
    const Batch batch = task.sample(20, 3);
    const auto tokens = batch.tokens.accessor<int64_t, 2>();
    const auto targets = batch.targets.accessor<int64_t, 2>();
    for (int64_t b = 0; b < 20; ++b) {
      std::vector<int64_t> symbols;
      for (int64_t i = 0; i < config.length; ++i) {
        const int64_t answer = i - (config.length - config.m);
        if (answer < 0) {
          EXPECT_EQ(targets[b][i], kNoTarget);
          EXPECT_EQ(tokens[b][i] == copy, answer == -1);
          if (tokens[b][i] < blank) symbols.push_back(tokens[b][i]);
        } else {
          EXPECT_EQ(tokens[b][i], blank);
          EXPECT_EQ(targets[b][i], symbols.at(static_cast<size_t>(answer)));
        }
      }
      EXPECT_EQ(static_cast<int64_t>(symbols.size()), config.m);
    }
  }
}

// Of 5 blanks, the number before the first of 2 symbols is binomial; the others are before the
// second.
TEST(SelectiveCopying, BlanksTakeAnySymbol) {
  const int64_t n = 5000;
  const Batch batch = selective_copying_task({.vocabulary = 5, .length = 10, .m = 2}).sample(n, 4);
  const auto tokens = batch.tokens.accessor<int64_t, 2>();
  std::vector<double> before(6), symbols(3);
  for (int64_t b = 0; b < n; ++b) {
    size_t first = 0;
    while (tokens[b][static_cast<int64_t>(first)] == 3) ++first;
    ++before.at(first);
    ++symbols.at(static_cast<size_t>(tokens[b][static_cast<int64_t>(first)]));
    EXPECT_LT(tokens[b][6], 3) << "the last symbol is next to the copy token";
  }
  expect_shares(before, {1, 5, 10, 10, 5, 1});
  expect_uniform(symbols);
}

TEST(Compression, IsItsDefinition) {
  for (const CompressionConfig& config : std::vector<CompressionConfig>{
           {}, {.vocabulary = 3, .m = 1}, {.vocabulary = 64, .m = 100}}) {
    const Task task = compression_task(config);
    EXPECT_EQ(task.length, 2 * config.m);
    EXPECT_EQ(task.chance, 100.0 / static_cast<double>(config.vocabulary - 1));
    const Batch batch = task.sample(20, 3);
    const at::Tensor symbols = batch.tokens.slice(1, 0, config.m);
    EXPECT_TRUE(symbols.lt(config.vocabulary - 1).all().item<bool>());
    EXPECT_TRUE(batch.tokens.slice(1, config.m).eq(config.vocabulary - 1).all().item<bool>());
    EXPECT_TRUE(batch.targets.slice(1, 0, config.m).eq(kNoTarget).all().item<bool>());
    EXPECT_TRUE(torch::equal(batch.targets.slice(1, config.m), symbols));
  }
  const Batch batch = compression_task({.vocabulary = 5, .m = 2}).sample(4000, 8);
  const auto tokens = batch.tokens.accessor<int64_t, 2>();
  std::vector<double> two(16);
  for (int64_t b = 0; b < 4000; ++b) ++two.at(static_cast<size_t>(4 * tokens[b][0] + tokens[b][1]));
  expect_uniform(two);
}

std::map<int64_t, int64_t> read_map(const Task& task, uint64_t seed) {
  std::map<int64_t, int64_t> value_of;
  const Batch batch = task.sample(200, seed);
  const auto tokens = batch.tokens.accessor<int64_t, 2>();
  const auto targets = batch.targets.accessor<int64_t, 2>();
  for (int64_t b = 0; b < 200; ++b) {
    for (int64_t i = 0; i < task.length; i += 2) {
      EXPECT_EQ(targets[b][i], kNoTarget);
      EXPECT_EQ(tokens[b][i + 1], task.vocabulary - 1);
      const int64_t value = value_of.emplace(tokens[b][i], targets[b][i + 1]).first->second;
      EXPECT_EQ(targets[b][i + 1], value) << "the mapping never changes";
    }
  }
  return value_of;
}

TEST(Memorization, MapsEveryKeyToAValueOfItsOwn) {
  for (const MemorizationConfig& config : std::vector<MemorizationConfig>{
           {}, {.vocabulary = 5, .length = 2}, {.vocabulary = 6, .length = 10}}) {
    const Task task = memorization_task(config);
    const int64_t keys = (config.vocabulary - 1) / 2;
    EXPECT_EQ(task.chance, 100.0 / static_cast<double>(config.vocabulary - 1 - keys));
    const std::map<int64_t, int64_t> value_of = read_map(task, 1);
    EXPECT_EQ(read_map(task, 2), value_of) << "in no sequence of any seed";
    std::set<int64_t> values;
    for (const auto& [key, value] : value_of) {
      EXPECT_LT(key, keys);
      EXPECT_TRUE(value >= keys && value < config.vocabulary - 1);
      values.insert(value);
    }
    EXPECT_EQ(static_cast<int64_t>(value_of.size()), keys);
    EXPECT_EQ(static_cast<int64_t>(values.size()), keys);
  }
  EXPECT_NE(read_map(memorization_task({}), 1), read_map(memorization_task({.map_seed = 1}), 1));
}

}  // namespace
}  // namespace hopmix::tasks

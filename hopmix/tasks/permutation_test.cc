#include "hopmix/tasks/permutation.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <set>

#include "hopmix/tasks/testing.h"

namespace hopmix::tasks {
namespace {

using Word = std::vector<int64_t>;

// The words of 0..n-1 with no letter twice, in order; with `even_only` those of an even number of
// swaps, counted by their cycles.
std::vector<Word> words(int64_t n, bool even_only) {
  std::vector<Word> all = {{}};
  for (int64_t place = 0; place < n; ++place) {
    std::vector<Word> longer;
    for (const Word& word : all) {
      for (int64_t letter = 0; letter < n; ++letter) {
        if (std::find(word.begin(), word.end(), letter) != word.end()) continue;
        longer.push_back(word);
        longer.back().push_back(letter);
      }
    }
    all = longer;
  }
  if (!even_only) return all;
  std::vector<Word> even;
  for (const Word& word : all) {
    std::set<int64_t> left(word.begin(), word.end());
    int64_t swaps = 0;
    while (!left.empty()) {
      const int64_t start = *left.begin();
      left.erase(start);
      for (int64_t x = word[static_cast<size_t>(start)]; x != start;
           x = word[static_cast<size_t>(x)]) {
        left.erase(x);
        ++swaps;
      }
    }
    if (swaps % 2 == 0) even.push_back(word);
  }
  return even;
}

struct Case {
  std::string group;
  int64_t n, size;
};

// Each token moves n things between positions; the target encodes where all of them are.
TEST(Permutation, TargetsSayWhereEverythingWent) {
  for (const Case& group : std::vector<Case>{
           {"S3", 3, 6}, {"S4", 4, 24}, {"S5", 5, 120}, {"A4", 4, 12}, {"A5", 5, 60}}) {
    for (const std::string tokens_are : {"elements", "swaps"}) {
      if (group.group[0] == 'A' && tokens_are == "swaps") continue;
      for (const int64_t length : {1, 2, 65, 300}) {
        const Task task =
            permutation_task({.group = group.group, .tokens = tokens_are, .length = length});
        const std::vector<Word> elements = words(group.n, group.group[0] == 'A');
        ASSERT_EQ(static_cast<int64_t>(elements.size()), group.size);
        EXPECT_EQ(task.vocabulary, group.size);
        EXPECT_EQ(task.length, length);
        EXPECT_EQ(task.chance, 100.0 / static_cast<double>(group.size));
        const Batch batch = task.sample(10, 3);
        const auto tokens = batch.tokens.accessor<int64_t, 2>();
        const auto targets = batch.targets.accessor<int64_t, 2>();
        const auto slices = batch.slices.accessor<int64_t, 2>();
        for (int64_t b = 0; b < 10; ++b) {
          Word where(static_cast<size_t>(group.n));
          for (int64_t x = 0; x < group.n; ++x) where[static_cast<size_t>(x)] = x;
          int64_t bound = 1;
          for (int64_t i = 0; i < length; ++i) {
            const Word& move = elements.at(static_cast<size_t>(tokens[b][i]));
            int64_t moved = 0;
            for (int64_t x = 0; x < group.n; ++x) moved += move[static_cast<size_t>(x)] != x;
            if (tokens_are == "swaps") {
              EXPECT_LE(moved, 2);
            }
            for (int64_t& place : where) place = move[static_cast<size_t>(place)];
            EXPECT_EQ(elements.at(static_cast<size_t>(targets[b][i])), where);
            if (i + 1 > bound) bound *= 2;
            EXPECT_EQ(slices[b][i], bound) << "factors, up to a power of two";
          }
        }
      }
    }
  }
}

TEST(Permutation, TokensAndProductsAreUniform) {
  const int64_t n = 6000;
  const auto counts_of = [&](const Task& task, const at::Tensor Batch::*part, int64_t at) {
    const at::Tensor column = (task.sample(n, 5).*part).select(1, at).contiguous();
    std::vector<double> counts(static_cast<size_t>(task.vocabulary));
    for (int64_t b = 0; b < n; ++b)
      ++counts.at(static_cast<size_t>(column.const_data_ptr<int64_t>()[b]));
    return counts;
  };
  const Task task = permutation_task({.group = "A5", .length = 3});
  expect_uniform(counts_of(task, &Batch::tokens, 0));
  expect_uniform(counts_of(task, &Batch::tokens, 2));
  expect_uniform(counts_of(task, &Batch::targets, 2));
  // The ten swaps of S5 and the identity.
  std::vector<double> swaps =
      counts_of(permutation_task({.tokens = "swaps", .length = 2}), &Batch::tokens, 1);
  swaps.erase(std::remove(swaps.begin(), swaps.end(), 0.0), swaps.end());
  EXPECT_EQ(swaps.size(), 11u);
  expect_uniform(swaps);
}

}  // namespace
}  // namespace hopmix::tasks

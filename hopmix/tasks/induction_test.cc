#include "hopmix/tasks/induction.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "hopmix/tasks/testing.h"

namespace hopmix::tasks {
namespace {

int64_t power_of_two_from(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

// Both forms: for each target, finds the last earlier position of the same token.
TEST(Induction, TargetsAreWhatFollowed) {
  for (const InductionConfig& config :
       std::vector<InductionConfig>{{},
                                    {.form = "bigram"},
                                    {.vocabulary = 3, .length = 3},
                                    {.vocabulary = 3, .length = 3, .form = "bigram"},
                                    {.vocabulary = 20, .length = 31},
                                    {.vocabulary = 64, .length = 65, .form = "bigram"},
                                    {.vocabulary = 5, .length = 1000}}) {
    const Task task = induction_task(config);
    const int64_t special = config.vocabulary - 1;
    EXPECT_EQ(task.vocabulary, config.vocabulary);
    EXPECT_EQ(task.length, config.length);
    EXPECT_EQ(task.chance, 100.0 / static_cast<double>(special));
    const Batch batch = task.sample(30, 6);
    const auto tokens = batch.tokens.accessor<int64_t, 2>();
    const auto targets = batch.targets.accessor<int64_t, 2>();
    const auto slices = batch.slices.accessor<int64_t, 2>();
    for (int64_t b = 0; b < 30; ++b) {
      int64_t specials = 0;
      for (int64_t i = 0; i < config.length; ++i) {
        specials += tokens[b][i] == special;
        int64_t before = i - 1;
        while (before >= 0 && tokens[b][before] != tokens[b][i]) --before;
        const bool asked = before >= 0 && (config.form == "bigram" || tokens[b][i] == special);
        EXPECT_EQ(targets[b][i], asked ? tokens[b][before + 1] : kNoTarget);
        EXPECT_EQ(slices[b][i], asked ? power_of_two_from(i - before - 1) : kNoSlice);
      }
      EXPECT_EQ(specials, config.form == "bigram" ? 0 : 2);
      if (config.form == "special") {
        EXPECT_EQ(tokens[b][config.length - 1], special);
        EXPECT_LT(targets[b][config.length - 1], special);
      }
    }
  }
}

TEST(Induction, PlacesAndSymbolsAreUniform) {
  const int64_t n = 6000, length = 8;
  const Batch batch = induction_task({.vocabulary = 5, .length = length}).sample(n, 2);
  const auto tokens = batch.tokens.accessor<int64_t, 2>();
  const auto targets = batch.targets.accessor<int64_t, 2>();
  std::vector<double> places(length - 2), answers(4);
  for (int64_t b = 0; b < n; ++b) {
    size_t place = 0;
    while (tokens[b][static_cast<int64_t>(place)] != 4) ++place;
    ++places.at(place);
    ++answers.at(static_cast<size_t>(targets[b][length - 1]));
  }
  expect_uniform(places);
  expect_uniform(answers);
}

}  // namespace
}  // namespace hopmix::tasks

#include "hopmix/tasks/mad_recall.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <set>

#include "hopmix/tasks/testing.h"

namespace hopmix::tasks {
namespace {

// Reads pairs in order: there is a target where the key was seen before, and nowhere else.
TEST(InContextRecall, ObeysTheRules) {
  for (const InContextRecallConfig& config : std::vector<InContextRecallConfig>{
           {},
           {.vocabulary = 32, .noise_vocabulary = 16, .noise = 0.2},
           {.vocabulary = 4, .length = 4},
           {.vocabulary = 5, .length = 1000, .noise_vocabulary = 1, .noise = 0.5},
           {.vocabulary = 128, .length = 66},
           {.vocabulary = 9, .length = 4, .noise_vocabulary = 4, .noise = 0.99}}) {
    const Task task = in_context_recall_task("recall", config);
    const int64_t symbols = config.vocabulary - config.noise_vocabulary, keys = symbols / 2;
    EXPECT_EQ(task.vocabulary, config.vocabulary);
    EXPECT_EQ(task.length, config.length);
    EXPECT_EQ(task.chance, 100.0 / static_cast<double>(symbols - keys));
    const Batch batch = task.sample(50, 2);
    const auto tokens = batch.tokens.accessor<int64_t, 2>();
    const auto targets = batch.targets.accessor<int64_t, 2>();
    for (int64_t b = 0; b < 50; ++b) {
      std::map<int64_t, int64_t> value_of;
      for (int64_t i = 0; i < config.length; i += 2) {
        const int64_t key = tokens[b][i], value = tokens[b][i + 1];
        EXPECT_EQ(targets[b][i + 1], kNoTarget);
        if (key >= symbols) {  // noise
          EXPECT_GE(value, symbols);
          EXPECT_EQ(targets[b][i], kNoTarget);
          EXPECT_LT(i, config.length - 2);
          continue;
        }
        EXPECT_LT(key, keys);
        EXPECT_TRUE(value >= keys && value < symbols);
        const auto [known, first] = value_of.emplace(key, value);
        EXPECT_EQ(known->second, value) << "a key keeps its value";
        EXPECT_EQ(targets[b][i], first ? kNoTarget : value);
        if (i == config.length - 2) {
          EXPECT_FALSE(first) << "the last was seen";
        }
      }
    }
  }
}

TEST(InContextRecall, NoiseAndKeysHaveTheirShares) {
  const int64_t n = 4000, pairs = 9, symbols = 8;
  const double noise = 0.3;
  const Batch batch =
      in_context_recall_task(
          "recall", {.vocabulary = 12, .length = 2 * pairs, .noise_vocabulary = 4, .noise = noise})
          .sample(n, 3);
  const auto tokens = batch.tokens.accessor<int64_t, 2>();
  std::vector<double> noise_tokens(4), keys(4), last(4), values(4), noisy(2);
  for (int64_t b = 0; b < n; ++b) {
    for (int64_t i = 0; i + 1 < pairs; ++i) {
      const int64_t token = tokens[b][2 * i];
      ++noisy[token >= symbols];
      ++(token >= symbols ? noise_tokens.at(static_cast<size_t>(token - symbols))
                          : keys.at(static_cast<size_t>(token)));
    }
    ++last.at(static_cast<size_t>(tokens[b][2 * pairs - 2]));
    ++values.at(static_cast<size_t>(tokens[b][2 * pairs - 1] - 4));
  }
  // All but one of the first pairs are noise with that probability.
  const double share = noise * static_cast<double>(pairs - 2) / static_cast<double>(pairs - 1);
  expect_shares(noisy, {1 - share, share});
  expect_uniform(noise_tokens);
  expect_uniform(keys);
  expect_uniform(last);
  expect_uniform(values);
}

using Motif = std::vector<int64_t>;

// A row cut into runs of key tokens and of value tokens, which are distinguished by their numbers.
struct Stretch {
  Motif tokens;
  int64_t first = 0;  // where it starts
};

std::vector<Stretch> read_stretches(const at::TensorAccessor<int64_t, 1>& tokens, int64_t keys,
                                    int64_t pad) {
  std::vector<Stretch> stretches;
  int64_t start = 0;
  while (start < tokens.size(0) && tokens[start] == pad) ++start;
  for (int64_t i = start; i < tokens.size(0); ++i) {
    EXPECT_NE(tokens[i], pad) << "padding is on the left alone";
    if (i == start || (tokens[i] < keys) != (tokens[i - 1] < keys)) stretches.push_back({{}, i});
    stretches.back().tokens.push_back(tokens[i]);
  }
  return stretches;
}

bool all_differ(const Motif& motif) {
  return std::set<int64_t>(motif.begin(), motif.end()).size() == motif.size();
}

TEST(FuzzyRecall, ObeysTheRules) {
  for (const FuzzyRecallConfig& config : std::vector<FuzzyRecallConfig>{
           {},
           {.vary_keys = false},
           {.vocabulary = 5, .length = 3, .key_motif = 1, .value_motif = 1},
           {.vocabulary = 5, .length = 100, .key_motif = 2, .value_motif = 2},
           {.vocabulary = 40, .length = 65, .key_motif = 1, .value_motif = 4},
           {.vocabulary = 9, .length = 11}}) {
    const Task task = fuzzy_recall_task(config);
    const int64_t pad = config.vocabulary - 1, keys = pad / 2;
    EXPECT_EQ(task.vocabulary, config.vocabulary);
    EXPECT_EQ(task.length, config.length);
    EXPECT_EQ(task.chance, 100.0 / static_cast<double>(pad - keys));
    const Batch batch = task.sample(50, 7);
    const auto tokens = batch.tokens.accessor<int64_t, 2>();
    const auto targets = batch.targets.accessor<int64_t, 2>();
    for (int64_t b = 0; b < 50; ++b) {
      std::vector<Stretch> stretches = read_stretches(tokens[b], keys, pad);
      std::map<Motif, Motif> value_of;
      Motif expected(static_cast<size_t>(config.length), kNoTarget);
      // The last value lacks its last token, which is the whole value if it has only one.
      if (stretches.size() % 2 == 1) stretches.push_back({{}, config.length});
      for (size_t r = 0; r < stretches.size(); r += 2) {
        const Motif &key = stretches[r].tokens, &value = stretches[r + 1].tokens;
        const bool last = r + 2 == stretches.size();
        EXPECT_LT(key[0], keys) << "a key comes first";
        EXPECT_TRUE(all_differ(key) && all_differ(value));
        EXPECT_LE(static_cast<int64_t>(key.size()), config.key_motif);
        EXPECT_LE(static_cast<int64_t>(value.size()), config.value_motif);
        if (!config.vary_keys) {
          EXPECT_EQ(static_cast<int64_t>(key.size()), config.key_motif);
        }
        const auto known = value_of.find(key);
        if (known == value_of.end()) {
          EXPECT_FALSE(last) << "the last was seen";
          value_of[key] = value;
          continue;
        }
        Motif whole = value;
        if (last) whole.push_back(known->second.back());
        EXPECT_EQ(whole, known->second) << "a key keeps its value";
        for (size_t i = 0; i < whole.size(); ++i) {
          expected.at(static_cast<size_t>(stretches[r + 1].first) - 1 + i) = whole[i];
        }
      }
      for (int64_t i = 0; i < config.length; ++i) {
        EXPECT_EQ(targets[b][i], expected[static_cast<size_t>(i)]) << b << " " << i;
      }
    }
  }
}

TEST(FuzzyRecall, SizesAndMotifsOfTheLastPairAreUniform) {
  const int64_t n = 9000;
  const FuzzyRecallConfig config{.vocabulary = 9, .length = 60};
  const Batch batch = fuzzy_recall_task(config).sample(n, 8);
  const auto tokens = batch.tokens.accessor<int64_t, 2>();
  const auto targets = batch.targets.accessor<int64_t, 2>();
  std::vector<double> key_sizes(3), value_sizes(3), first_of_key(4), first_of_value(4);
  for (int64_t b = 0; b < n; ++b) {
    std::vector<Stretch> stretches = read_stretches(tokens[b], 4, 8);
    const bool one = stretches.back().tokens[0] < 4;  // its value's only token is cut off
    const Stretch& key = one ? stretches.back() : stretches[stretches.size() - 2];
    ++key_sizes.at(key.tokens.size() - 1);
    ++value_sizes.at(one ? 0 : stretches.back().tokens.size());
    ++first_of_key.at(static_cast<size_t>(key.tokens[0]));
    const int64_t end = key.first + static_cast<int64_t>(key.tokens.size()) - 1;
    ++first_of_value.at(static_cast<size_t>(targets[b][end] - 4));
  }
  expect_uniform(key_sizes);
  expect_uniform(value_sizes);
  expect_uniform(first_of_key);
  expect_uniform(first_of_value);
}

}  // namespace
}  // namespace hopmix::tasks

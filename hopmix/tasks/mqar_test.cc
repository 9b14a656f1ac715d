#include "hopmix/tasks/mqar.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <set>

#include "hopmix/base/testing.h"
#include "hopmix/tasks/rows.h"
#include "hopmix/tasks/testing.h"

namespace hopmix::tasks {
namespace {

TEST(Mqar, ObeysTheRules) {
  for (const bool random : {false, true}) {
    for (const MqarConfig& config :
         std::vector<MqarConfig>{{},
                                 {.sizes = {{1024, 256}}},
                                 {.vocabulary = 4, .sizes = {{4, 1}}},
                                 {.vocabulary = 8, .sizes = {{12, 3}}},  // every key, every place
                                 {.vocabulary = 66, .sizes = {{130, 32}}, .power_a = 1},
                                 {.sizes = {{100, 1}}}}) {
      MqarConfig with = config;
      with.random_non_queries = random;
      const Task task = mqar_task(with);
      const int64_t half = config.vocabulary / 2, pairs = config.sizes[0].pairs;
      EXPECT_EQ(task.length, config.sizes[0].length);
      EXPECT_EQ(task.vocabulary, config.vocabulary);
      EXPECT_EQ(task.chance, 100.0 / static_cast<double>(half));
      const Batch batch = task.sample(20, 5);
      const auto tokens = batch.tokens.accessor<int64_t, 2>();
      const auto targets = batch.targets.accessor<int64_t, 2>();
      const auto slices = batch.slices.accessor<int64_t, 2>();
      for (int64_t b = 0; b < 20; ++b) {
        std::map<int64_t, int64_t> value_of;
        std::set<int64_t> values, asked;
        for (int64_t i = 0; i < 2 * pairs; i += 2) {
          const int64_t key = tokens[b][i], value = tokens[b][i + 1];
          EXPECT_TRUE(key >= 1 && key < half && value >= half && value < config.vocabulary);
          EXPECT_TRUE(value_of.emplace(key, value).second) << "no key twice";
          EXPECT_TRUE(values.insert(value).second) << "no value twice";
        }
        for (int64_t i = 0; i < task.length; ++i) {
          if (targets[b][i] == kNoTarget) {
            EXPECT_EQ(slices[b][i], kNoSlice);
            if (i >= 2 * pairs && !random) {
              EXPECT_EQ(tokens[b][i], 0);
            }
            continue;
          }
          EXPECT_GE(i, 2 * pairs);
          EXPECT_EQ(i % 2, 0) << "a place takes two tokens";
          EXPECT_EQ(targets[b][i], value_of.at(tokens[b][i]));
          EXPECT_EQ(slices[b][i], pairs);
          EXPECT_TRUE(asked.insert(tokens[b][i]).second);
        }
        EXPECT_EQ(static_cast<int64_t>(asked.size()), pairs) << "every key is asked";
      }
    }
  }
}

// The slots of the first two keys follow draws without replacement: p_i p_j / (1 - p_i).
TEST(Mqar, PlacesFollowThePowerLaw) {
  const int64_t n = 30000, places = 6;
  for (const double a : {0.01, 0.5, 1.0}) {
    const Task task = mqar_task({.sizes = {{.length = 2 * (2 + places), .pairs = 2}},
                                 .power_a = a,
                                 .random_non_queries = false});
    const Batch batch = task.sample(n, 6);
    const auto tokens = batch.tokens.accessor<int64_t, 2>();
    std::vector<double> p, joint, counts(places * places);
    double sum = 0;
    for (int64_t i = 1; i <= places; ++i) {
      p.push_back(a * std::pow(static_cast<double>(i), a - 1));
      sum += p.back();
    }
    for (double& share : p) share /= sum;
    for (int64_t b = 0; b < n; ++b) {
      int64_t place[2] = {-1, -1};
      for (int64_t i = 0; i < places; ++i) {
        for (int key : {0, 1}) {
          if (tokens[b][4 + 2 * i] == tokens[b][2 * key]) place[key] = i;
        }
      }
      ASSERT_TRUE(place[0] >= 0 && place[1] >= 0);
      ++counts[static_cast<size_t>(place[0] * places + place[1])];
    }
    std::vector<double> seen;
    for (size_t i = 0; i < places; ++i) {
      for (size_t j = 0; j < places; ++j) {
        if (i == j) continue;
        joint.push_back(p[i] * p[j] / (1 - p[i]));
        seen.push_back(counts[i * places + j]);
      }
    }
    expect_shares(seen, joint);
  }
}

TEST(Mqar, KeysValuesAndFillingAreUniform) {
  const int64_t n = 20000;
  const Batch batch = mqar_task({.vocabulary = 10, .sizes = {{8, 2}}}).sample(n, 9);
  const auto tokens = batch.tokens.accessor<int64_t, 2>();
  std::vector<double> keys(4), values(5), filling(10);
  for (int64_t b = 0; b < n; ++b) {
    ++keys.at(static_cast<size_t>(tokens[b][2] - 1));
    ++values.at(static_cast<size_t>(tokens[b][3] - 5));
    ++filling.at(static_cast<size_t>(tokens[b][5]));  // next to a query, never one
  }
  expect_uniform(keys);
  expect_uniform(values);
  expect_uniform(filling);
}

TEST(Mqar, MixesSizesByTheirWeights) {
  const Task task =
      mqar_task({.sizes = parse_mqar_sizes("64:4*5, 128:8,256:16 , 32:8*3", "sizes")});
  EXPECT_EQ(task.length, 256);
  EXPECT_EQ(task.slice_name, "pairs");
  std::map<int64_t, double> lengths;
  const int64_t n = 4000;
  for (int64_t seed = 0; seed < n; ++seed) {
    const Batch batch = task.sample(1, static_cast<uint64_t>(seed));
    const int64_t length = batch.tokens.size(1);
    ++lengths[length];
    if (seed >= 50) continue;
    // Rows do not depend on the batch, and all have the same size.
    const Batch large = task.sample(9, static_cast<uint64_t>(seed));
    EXPECT_TRUE(torch::equal(large.tokens.slice(0, 0, 1), batch.tokens));
    const int64_t pairs = length == 32 ? 8 : length / 16;
    EXPECT_EQ(large.slices.max().item<int64_t>(), pairs);
    EXPECT_EQ(large.slices.eq(pairs).sum().item<int64_t>(), 9 * pairs);
  }
  expect_shares({lengths[64], lengths[128], lengths[256], lengths[32]}, {5, 1, 1, 3});
  EXPECT_EQ(lengths.size(), 4u);
}

TEST(Mqar, SizesThatCannotBeRead) {
  for (const std::string text : {"", "64", "64:", ":4", "64:4*", "64:4,", "64:4 8", "64:4*x",
                                 "-64:4", "64:4;128:8", "99999999999999999999:4"}) {
    EXPECT_EQ(
        error_of([&] { parse_mqar_sizes(text, "task.sizes"); }),
        "task.sizes = '" + text +
            "': must have the form length:pairs, or several with weights such as 64:4*5, 128:8");
  }
}

}  // namespace
}  // namespace hopmix::tasks

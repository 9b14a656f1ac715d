#include "hopmix/bench/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hopmix::bench {
namespace {

TEST(Median, IsTheMiddle) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 4}), 4);
  EXPECT_EQ(median({9, 1, 4, 2}), 3);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(Crossover, IsWhereItStaysAhead) {
  const std::vector<Timing> peer = {{64, 1}, {128, 2}, {256, 4}, {512, 8}};
  EXPECT_EQ(crossover({{64, 3}, {128, 3}, {256, 3}, {512, 3}}, peer), 256);
  EXPECT_EQ(crossover({{64, 0.5}, {128, 1}, {256, 2}, {512, 4}}, peer), 64);
  // Faster at 64, slower at 128: the crossover is at 256.
  EXPECT_EQ(crossover({{64, 0.5}, {128, 3}, {256, 2}, {512, 4}}, peer), 256);
  EXPECT_EQ(crossover({{64, 0.5}, {128, 1}, {256, 2}, {512, 9}}, peer), std::nullopt);
  EXPECT_EQ(crossover({{64, 1}}, peer), std::nullopt) << "equally fast is not faster";
}

TEST(Crossover, TakesTheLengthsThatBothHold) {
  EXPECT_EQ(crossover({{1024, 1}, {128, 1}}, {{128, 2}, {64, 1}}), 128);
  EXPECT_EQ(crossover({{1024, 1}}, {{128, 2}}), std::nullopt);
  EXPECT_EQ(crossover({}, {}), std::nullopt);
  // In any order.
  EXPECT_EQ(crossover({{512, 3}, {64, 3}, {256, 3}}, {{256, 4}, {512, 8}, {64, 1}}), 256);
}

constexpr int64_t kKilo = 1024, kMega = kKilo * 1024, kGiga = kMega * 1024;

std::vector<Level> levels_of(int threads) {
  std::vector<Level> levels = plan_levels(48 * kKilo, 2 * kMega, 32 * kMega, 16 * kGiga);
  for (Level& level : levels) level.threads = threads;
  return levels;
}

std::string name_of(const std::vector<Level>& levels, int64_t bytes, int threads) {
  const Level* level = level_of(levels, bytes, threads);
  return level == nullptr ? "none" : level->name;
}

TEST(Levels, TheSmallestWithRoom) {
  const std::vector<Level> levels = levels_of(1);
  EXPECT_EQ(name_of(levels, 1, 1), "L1");
  EXPECT_EQ(name_of(levels, 48 * kKilo, 1), "L1");
  EXPECT_EQ(name_of(levels, 48 * kKilo + 1, 1), "L2");
  EXPECT_EQ(name_of(levels, 2 * kMega, 1), "L2");
  EXPECT_EQ(name_of(levels, 3 * kMega, 1), "L3");
  EXPECT_EQ(name_of(levels, 33 * kMega, 1), "memory");
  EXPECT_EQ(name_of(levels, 1024 * kGiga, 1), "memory");
  EXPECT_EQ(name_of(levels, 1, 2), "none");
  std::vector<Level> reversed(levels.rbegin(), levels.rend());
  EXPECT_EQ(name_of(reversed, 3 * kMega, 1), "L3");
}

TEST(Levels, BuffersLieWellWithinTheirLevel) {
  const std::vector<Level> levels = levels_of(1);
  ASSERT_EQ(levels.size(), 4u);
  EXPECT_EQ(levels[0].buffer_bytes, 24 * kKilo);
  EXPECT_EQ(levels[1].buffer_bytes, kMega);
  EXPECT_EQ(levels[2].buffer_bytes, 8 * kMega);
  EXPECT_EQ(levels[3].buffer_bytes, 64 * kMega);
  for (const Level& level : levels) EXPECT_EQ(level.buffer_bytes % 512, 0);
}

TEST(Levels, OfAMachineThatSaysLittleOfItself) {
  const std::vector<Level> unknown = plan_levels(0, 0, 0, kGiga);
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0].name, "memory");
  EXPECT_EQ(unknown[0].buffer_bytes, 64 * kMega);
  const std::vector<Level> small = plan_levels(32 * kKilo, 0, 256 * kMega, 100 * kMega);
  ASSERT_EQ(small.size(), 3u);
  EXPECT_EQ(small[2].buffer_bytes, 25 * kMega) << "a quarter of what is free";
}

}  // namespace
}  // namespace hopmix::bench

#include "hopmix/bench/interleave.h"

#include <gtest/gtest.h>

namespace hopmix::bench {
namespace {

TEST(Interleave, TimesEveryRepetitionOfEveryWork) {
  int once = 0, often = 0;
  std::vector<double> reported;
  const auto report = [&](double part) { reported.push_back(part); };
  const auto times =
      time_interleaved({{[&] { ++once; }, 3, /*once=*/true}, {[&] { ++often; }, 2, /*once=*/false}},
                       {.report = report});
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].size(), 3u);
  EXPECT_EQ(times[1].size(), 2u);
  EXPECT_EQ(once, 3);
  EXPECT_GT(often, 1000) << "an empty run is repeated until it can be timed";
  for (const double seconds : times[1]) EXPECT_GT(seconds, 0);
  ASSERT_GE(reported.size(), 5u);
  EXPECT_EQ(reported.front(), 0);
  for (const double part : reported) EXPECT_LE(part, 1);
}

TEST(Interleave, MixesRepetitions) {
  std::string order;
  time_interleaved({{[&] { order += 'a'; }, 20, true}, {[&] { order += 'b'; }, 20, true}}, {});
  EXPECT_EQ(order.size(), 40u);
  const std::string apart(20, 'a');
  EXPECT_EQ(order.find(apart), std::string::npos) << order;
}

TEST(Interleave, CanBeStopped) {
  int runs = 0;
  const auto times =
      time_interleaved({{[&] { ++runs; }, 5, true}}, {.stop = [&] { return runs >= 2; }});
  EXPECT_EQ(runs, 2);
  EXPECT_LT(times[0].size(), 5u);
}

TEST(Interleave, NothingToTime) { EXPECT_TRUE(time_interleaved({}, {}).empty()); }

}  // namespace
}  // namespace hopmix::bench

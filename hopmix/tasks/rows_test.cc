#include "hopmix/tasks/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "hopmix/tasks/testing.h"

namespace hopmix::tasks {
namespace {

TEST(Rows, DrawsDistinctNumbersInEveryOrder) {
  Rng rng(3);
  std::map<std::vector<int64_t>, double> seen;
  for (int i = 0; i < 12000; ++i) ++seen[draw_distinct(rng, 4, 2)];
  ASSERT_EQ(seen.size(), 12u);
  std::vector<double> counts;
  for (const auto& [drawn, count] : seen) {
    EXPECT_NE(drawn[0], drawn[1]);
    counts.push_back(count);
  }
  expect_uniform(counts);

  for (const int64_t n : {0, 1, 7, 100}) {
    std::vector<int64_t> all = draw_distinct(rng, n, n);
    std::sort(all.begin(), all.end());
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(all.at(static_cast<size_t>(i)), i);
    EXPECT_EQ(static_cast<int64_t>(all.size()), n);
  }
}

TEST(Rows, TextStandsAtTheEnd) {
  std::vector<int64_t> tokens(5), targets(5, kNoTarget), slices(5, kNoSlice);
  Text text;
  text.say(7);
  text.say(8, 9, 2);
  text.say(3);
  text.drop_last();
  text.align_right(1, {tokens, targets, slices});
  EXPECT_EQ(tokens, (std::vector<int64_t>{1, 1, 1, 7, 8}));
  EXPECT_EQ(targets, (std::vector<int64_t>{-100, -100, -100, -100, 9}));
  EXPECT_EQ(slices, (std::vector<int64_t>{-1, -1, -1, -1, 2}));
}

}  // namespace
}  // namespace hopmix::tasks

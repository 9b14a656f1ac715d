#include "hopmix/analysis/pareto.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hopmix/analysis/random.h"

namespace hopmix {
namespace {

TEST(Pareto, ByHand) {
  EXPECT_EQ(pareto_front({{1, 3}, {2, 2}, {3, 1}, {2, 3}, {2, 2}, {3, 3}}),
            (std::vector<bool>{true, true, true, false, false, false}));
  EXPECT_EQ(pareto_front({}), std::vector<bool>{});
  EXPECT_TRUE(dominates({1, 2}, {1, 3}));
  EXPECT_FALSE(dominates({1, 2}, {1, 2}));
  EXPECT_FALSE(dominates({std::nan(""), 0}, {1, 1}));
}

TEST(Pareto, NoneOnTheFrontIsBeatenAndAllOthersAreByOneOnIt) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::vector<double>> points(1 + trial % 30);
    for (auto& point : points) {
      for (int k = 0; k < 3; ++k) point.push_back(static_cast<double>(below(random, 6)));
    }
    const std::vector<bool> front = pareto_front(points);
    for (size_t p = 0; p < points.size(); ++p) {
      bool beaten = false, covered = false;
      for (size_t q = 0; q < points.size(); ++q) {
        const bool better = dominates(points[q], points[p]);
        beaten |= better;
        covered |= front[q] && (better || (q < p && points[q] == points[p]));
      }
      EXPECT_FALSE(front[p] && beaten);
      EXPECT_TRUE(front[p] || covered);
    }
  }
}

}  // namespace
}  // namespace hopmix

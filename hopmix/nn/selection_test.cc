#include "hopmix/nn/selection.h"

#include <gtest/gtest.h>

#include <limits>

#include "hopmix/ops/ops.h"

namespace hopmix::nn {
namespace {

using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor row(const std::vector<int32_t>& values) { return torch::tensor(values, torch::kInt32); }

TEST(BestPositions, TiesGoToTheEarlierAndNanComesLast) {
  const Tensor scores =
      torch::tensor({{{1.0, 3.0, 1.0, 3.0, -kInfinity, kNan, 2.0}}}, torch::kFloat64);
  EXPECT_TRUE(torch::equal(best_positions(scores, 4)[0][0], row({1, 3, 6, 0})));
  EXPECT_TRUE(torch::equal(best_positions(scores, 9)[0][0], row({1, 3, 6, 0, 2, 4, 5, -1, -1})));
  EXPECT_TRUE(torch::equal(best_positions(scores.slice(2, 0, 0), 2)[0][0], row({-1, -1})));
}

TEST(WithoutSelf, DropsTheTokenItselfOrTheLastOfTheRow) {
  const Tensor indices =
      torch::tensor({{{{0, -1, -1}}, {{1, 0, -1}}, {{1, 0, 2}}, {{2, 1, 0}}}}, torch::kInt32);
  const Tensor expected =
      torch::tensor({{{{-1, -1}}, {{0, -1}}, {{1, 0}}, {{2, 1}}}}, torch::kInt32);
  EXPECT_TRUE(torch::equal(without_self(indices, torch::arange(4)), expected));
  // At any position.
  const Tensor later = torch::tensor({{{{7, 9, 8}}, {{0, -1, -1}}}}, torch::kInt32);
  const Tensor without = without_self(later, torch::tensor({8, 0}, torch::kInt64));
  EXPECT_TRUE(torch::equal(without[0][0][0], row({7, 9})));
  EXPECT_TRUE(torch::equal(without[0][1][0], row({-1, -1})));
}

// Each token by itself gives what the operator gives for the whole sequence.
TEST(TokenNeighborhood, IsTheOperatorsRow) {
  torch::manual_seed(4);
  const int64_t time = 70;
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < time; ++t) rows.push_back(best_positions(torch::rand({2, 3, t + 1}), 4));
  const Tensor links = torch::stack(rows, 1);  // [2,time,3,4]
  for (const std::vector<int64_t>& widths :
       std::vector<std::vector<int64_t>>{{4}, {1}, {4, 1, 1}, {2, 3}, {1, 1, 1, 1}}) {
    for (const bool cumulative : {true, false}) {
      const Tensor whole = ops::neighborhood(links, widths, cumulative);
      ASSERT_EQ(whole.size(3), neighborhood_width(widths, cumulative));
      // best_positions starts with the first entries that are not -1, as the operator counts them.
      for (int64_t t = 0; t < time; ++t) {
        const Tensor one =
            token_neighborhood(links.select(1, t), links.slice(1, 0, t + 1), widths, cumulative);
        EXPECT_TRUE(torch::equal(one, whole.select(1, t))) << t;
      }
    }
  }
}

}  // namespace
}  // namespace hopmix::nn

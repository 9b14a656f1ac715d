#include "hopmix/nn/positions.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hopmix::nn {
namespace {

TEST(Rope, ScoresDependOnTheDistanceAlone) {
  torch::manual_seed(0);
  const Tensor q = torch::randn({1, 1, 1, 8}, torch::kFloat64),
               k = torch::randn({1, 1, 1, 8}, torch::kFloat64);
  const auto score = [&](int64_t i, int64_t j) {
    return (apply_rope(q, i) * apply_rope(k, j)).sum().item<double>();
  };
  EXPECT_NEAR(score(5, 2), score(1005, 1002), 1e-9);
  EXPECT_GT(std::abs(score(5, 2) - score(5, 3)), 1e-3);
  EXPECT_NEAR(apply_rope(q, 77).norm().item<double>(), q.norm().item<double>(), 1e-12);
  EXPECT_TRUE(torch::equal(apply_rope(q, 0), q));
}

TEST(Rope, SecondPairTurnsByItsOwnFrequency) {
  // D = 4: frequencies 1 and 10000^(-1/2) = 0.01.
  const Tensor x = torch::tensor({1.0, 0.0, 1.0, 0.0}, torch::kFloat64).view({1, 1, 1, 4});
  const Tensor y = apply_rope(x, 3).flatten();
  const double expected[] = {std::cos(3.0), std::sin(3.0), std::cos(0.03), std::sin(0.03)};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(y[i].item<double>(), expected[i], 1e-15);
}

}  // namespace
}  // namespace hopmix::nn

#include "hopmix/nn/constructed_block.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hopmix/base/error.h"

namespace hopmix::nn {
namespace {

std::string name_of(const ConstructedBlockConfig& c) {
  return "m " + std::to_string(c.functions) + " n " + std::to_string(c.n) +
         (c.cumulative ? " cumulative" : " exact") + (c.two_digits ? " two digits" : "") +
         (c.dtype == torch::kFloat64 ? " float64" : " float32");
}

std::vector<ConstructedBlockConfig> forms(int64_t m, int64_t n) {
  std::vector<ConstructedBlockConfig> all;
  for (const bool cumulative : {true, false}) {
    for (const bool two_digits : {false, true}) {
      for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
        all.push_back({m, n, cumulative, two_digits, dtype});
      }
    }
  }
  return all;
}

// Tests every choice of m functions on [n] with every question.
TEST(ConstructedBlock, AnswersEveryInstanceOfSmallDomains) {
  for (const auto& [m, n] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {2, 2}, {2, 3}, {3, 2}}) {
    const auto count = static_cast<int64_t>(std::llround(std::pow(n, m * n)));
    const Tensor powers = torch::pow(n, torch::arange(m * n));
    const Tensor functions =
        torch::arange(count).unsqueeze(1).floor_divide(powers).remainder(n).view({count, m, n});
    const Tensor x = torch::arange(n).expand({count, n});
    for (const ConstructedBlockConfig& config : forms(m, n)) {
      EXPECT_TRUE(
          torch::equal(ConstructedBlock(config).answers(functions, x), compositions(functions, x)))
          << name_of(config);
    }
  }
}

TEST(ConstructedBlock, AnswersRandomInstances) {
  for (int64_t m = 1; m <= 6; ++m) {
    for (const int64_t n : {7, 30, 100}) {
      torch::manual_seed(m * 1000 + n);
      const Tensor functions = torch::randint(0, n, {2, m, n}, torch::kInt64);
      const Tensor x = torch::arange(n).expand({2, n});
      for (const ConstructedBlockConfig& config : forms(m, n)) {
        EXPECT_TRUE(torch::equal(ConstructedBlock(config).answers(functions, x),
                                 compositions(functions, x)))
            << name_of(config);
      }
    }
  }
}

TEST(ConstructedBlock, WidthIsThatOfTheTheorem) {
  EXPECT_EQ(ConstructedBlock({.functions = 4, .n = 10}).width(), 4 + 7);
  EXPECT_EQ(ConstructedBlock({.functions = 4, .n = 10, .two_digits = true}).width(), 4 + 13);
}

TEST(ConstructedBlock, BadSizes) {
  EXPECT_THROW(ConstructedBlock({.functions = 0}), Error);
  EXPECT_THROW(ConstructedBlock({.n = 1}), Error);
}

TEST(Compositions, FirstFunctionLast) {
  const Tensor functions = torch::tensor({{{1, 2, 0}, {2, 2, 1}}}, torch::kInt64);  // f_1, f_2
  EXPECT_TRUE(torch::equal(compositions(functions, torch::tensor({{0, 1, 2}}, torch::kInt64)),
                           torch::tensor({{0, 0, 2}}, torch::kInt64)));
}

}  // namespace
}  // namespace hopmix::nn

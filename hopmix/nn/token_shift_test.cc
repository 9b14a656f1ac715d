#include "hopmix/nn/token_shift.h"

#include <gtest/gtest.h>

namespace hopmix::nn {
namespace {

TEST(TokenShift, JoinsEachTokenWithTheOneBefore) {
  HeadsConfig config{.width = 2, .heads = 1};
  const Tensor x = torch::arange(6, torch::kFloat32).view({1, 3, 2});
  const Tensor y = shift_tokens(config, x);
  const Tensor expected =
      torch::tensor({{0.f, 1.f, 0.f, 0.f}, {2.f, 3.f, 0.f, 1.f}, {4.f, 5.f, 2.f, 3.f}});
  EXPECT_TRUE(torch::equal(y[0], expected));
  config.token_shift = false;
  EXPECT_TRUE(torch::equal(shift_tokens(config, x), x));
}

}  // namespace
}  // namespace hopmix::nn

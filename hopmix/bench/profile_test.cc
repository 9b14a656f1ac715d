#include "hopmix/bench/profile.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

namespace hopmix::bench {
namespace {

TEST(Profile, TellsPhasesAndOperatorsApart) {
  const at::Tensor a = at::randn({200, 200});
  const auto phases = profile([&] {
    {
      RECORD_USER_SCOPE("first");
      at::matmul(a, a);
    }
    {
      RECORD_USER_SCOPE("second");
      at::softmax(a, -1);
      at::softmax(a, -1);
    }
  });
  ASSERT_EQ(phases.size(), 2u);
  const Phase& first = phases.at("first");
  EXPECT_TRUE(first.operators.contains("aten::mm"));
  EXPECT_FALSE(first.operators.contains("aten::softmax"));
  for (const auto& [name, phase] : phases) {
    EXPECT_GT(phase.seconds, 0) << name;
    double sum = 0;
    for (const auto& [op, seconds] : phase.operators) {
      EXPECT_GE(seconds, 0) << op;
      sum += seconds;
    }
    EXPECT_NEAR(sum, phase.seconds, 1e-9) << "what operators take themselves adds up to the phase";
  }
}

TEST(Profile, StopsListening) {
  EXPECT_TRUE(profile([] {}).empty());
  at::zeros({3}).add(1);  // must not access the destroyed recording
  EXPECT_EQ(profile([] { at::zeros({3}); }).count(""), 1u);
}

}  // namespace
}  // namespace hopmix::bench

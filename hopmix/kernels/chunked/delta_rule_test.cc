#include "hopmix/kernels/chunked/delta_rule.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/chunked/matrix_state_checks.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

template <typename T, typename F>
void for_each_operator(const F& f) {
  for (const DecayOf decay : {DecayOf::kNothing, DecayOf::kHead, DecayOf::kChannel}) {
    SCOPED_TRACE(static_cast<int>(decay));
    f(StateOperator<T>{decay, /*corrects=*/true, delta_rule<T>, delta_rule_backward<T>});
  }
}

template <typename T>
class DeltaRuleTest : public ::testing::Test {};
TYPED_TEST_SUITE(DeltaRuleTest, StorageTypes);

TYPED_TEST(DeltaRuleTest, IsTheRecurrence) {
  for_each_operator<TypeParam>([](const auto& op) { expect_the_recurrence(op); });
}

TYPED_TEST(DeltaRuleTest, DecaysOfAnyStrength) {
  for_each_operator<TypeParam>([](const auto& op) { expect_any_decay(op); });
}

TYPED_TEST(DeltaRuleTest, PartsOfTheBackward) {
  for_each_operator<TypeParam>([](const auto& op) { expect_parts(op); });
}

TYPED_TEST(DeltaRuleTest, SameBitsForAnyNumberOfThreads) {
  for_each_operator<TypeParam>([](const auto& op) { expect_same_for_threads(op); });
}

TEST(DeltaRule, FiniteDifferences) {
  for_each_operator<double>([](const auto& op) { expect_finite_differences(op); });
}

TEST(DeltaRule, ProductsOfBfloat16) {
  with_bfloat16_products([] {
    for_each_operator<Bfloat16>([](const auto& op) {
      for (const StateShape& s : {StateShape{1, 140, 2, 1, 20, 12}, {1, 65, 1, 1, 64, 20}}) {
        expect_reference(op, s);
      }
      expect_any_decay(op);
    });
  });
}

}  // namespace
}  // namespace hopmix::kernels

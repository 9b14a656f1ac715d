#include "hopmix/nn/packing.h"

#include <gtest/gtest.h>

#include "hopmix/base/testing.h"

namespace hopmix::nn {
namespace {

using torch::Tensor;

Tensor numbers(const std::vector<int64_t>& values) { return torch::tensor(values, torch::kInt64); }

TEST(Packing, ByDefaultEachRowIsOneSequence) {
  const Packing none;
  EXPECT_FALSE(none);
  EXPECT_FALSE(none.cu_seqlens().has_value());
  EXPECT_FALSE(none.starts().defined());
  EXPECT_EQ(none.longest(7), 7);
  EXPECT_TRUE(torch::equal(none.positions(4), numbers({0, 1, 2, 3})));
}

TEST(Packing, SequencesOfOneRow) {
  const Packing packing(numbers({0, 0, 3, 4, 4, 6}), torch::zeros({1, 6}));
  EXPECT_TRUE(static_cast<bool>(packing));
  EXPECT_TRUE(torch::equal(*packing.cu_seqlens(), numbers({0, 0, 3, 4, 4, 6})));
  EXPECT_EQ(packing.lengths(), (std::vector<int64_t>{3, 1, 2}));
  EXPECT_TRUE(torch::equal(packing.starts(), numbers({0, 3, 4})));
  EXPECT_EQ(packing.longest(6), 3);
  EXPECT_TRUE(torch::equal(packing.positions(6), numbers({0, 1, 2, 0, 0, 1})));
}

TEST(Packing, OfNothing) {
  for (const std::vector<int64_t>& none : {std::vector<int64_t>{0}, {0, 0}}) {
    const Packing packing(numbers(none), torch::zeros({1, 0}));
    EXPECT_TRUE(static_cast<bool>(packing));
    EXPECT_EQ(packing.longest(0), 0);
    EXPECT_EQ(packing.positions(0).numel(), 0);
  }
}

TEST(Packing, Errors) {
  const auto error = [](const Tensor& cu_seqlens, int64_t rows = 1) {
    return error_of([&] { Packing(cu_seqlens, torch::zeros({rows, 5})); });
  };
  EXPECT_EQ(error(numbers({0, 2, 5})), "");
  EXPECT_EQ(error(numbers({1, 5})), "cu_seqlens[0] = 1: must be 0");
  EXPECT_EQ(error(numbers({0, 3, 2, 5})), "cu_seqlens[2] = 2: must be at least cu_seqlens[1] = 3");
  EXPECT_EQ(error(numbers({0, 3, 4})), "cu_seqlens[2] = 4: must be the number of tokens, 5");
  EXPECT_EQ(error(numbers({0, 3, 5}), 2), "tokens: must have one row with cu_seqlens, but has 2");
  const std::string shape = "cu_seqlens: must be int64 [N + 1], with 0 as its first entry";
  for (const Tensor& bad :
       {torch::tensor({0, 5}, torch::kInt32), torch::zeros({1, 2}, torch::kInt64),
        torch::zeros({0}, torch::kInt64), torch::zeros({}, torch::kInt64)}) {
    EXPECT_EQ(error(bad), shape);
  }
}

}  // namespace
}  // namespace hopmix::nn

#include "hopmix/nn/past.h"

#include <gtest/gtest.h>

namespace hopmix::nn {
namespace {

// Whatever the pattern, a step reads exactly its row, and a bounded pattern holds no more than the
// next row.
class PastTest : public testing::TestWithParam<std::string> {};

TEST_P(PastTest, ReadsTheRowOfEachToken) {
  const int64_t time = 300;
  const Past past(GetParam());
  const Pattern pattern(GetParam(), time + 1);
  State state;
  state.tensors["x"] = torch::empty({1, 0});
  for (int64_t i = 0; i < time; ++i) {
    std::vector<int32_t> row;
    pattern.row(i, row);
    const Tensor read = past.read(state, "x");
    ASSERT_EQ(read.size(1), static_cast<int64_t>(row.size())) << i;
    for (size_t k = 0; k < row.size(); ++k)
      ASSERT_EQ(read[0][static_cast<int64_t>(k)].item<float>(), row[k]) << i;
    ASSERT_EQ(past.held(i), state.tensors["x"].size(1));
    past.append(state, {{"x", torch::full({1}, static_cast<float>(i))}});
    ++state.position;
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, PastTest,
                         testing::Values("dense", "window(1)", "window(7)", "2^k", "cached(2^k)",
                                         "k^2+1", "cached(k^2+1)", "cached(fib)", "strided(5)",
                                         "global(3)", "blocks(16)", "fenwick", "random(4,1)",
                                         "window(3)|cached(2^k)", "window(2)|strided(9)"),
                         [](const auto& test) { return std::to_string(test.index); });

TEST(Past, ATokenThatIsReadMuchLaterIsHeld) {
  // 5000 lies beyond the length that the pattern is first bound to.
  const Past past("offsets(1,2,5000)");
  State state;
  state.tensors["x"] = torch::empty({1, 0});
  for (; state.position < 5003; ++state.position) {
    past.append(state, {{"x", torch::full({1}, static_cast<float>(state.position))}});
  }
  EXPECT_TRUE(torch::equal(past.read(state, "x"), torch::tensor({{3.f, 5001.f, 5002.f}})));
}

TEST(Past, CachedPatternsHoldTheirPeakAndNotATokenMore) {
  const Past past("cached(k^2+1)");
  for (const int64_t t : {100, 10000, 1000000}) {
    EXPECT_LE(past.held(t), static_cast<int64_t>(std::sqrt(static_cast<double>(t))) + 1);
  }
}

}  // namespace
}  // namespace hopmix::nn

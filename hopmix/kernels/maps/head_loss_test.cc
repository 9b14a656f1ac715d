#include "hopmix/kernels/maps/head_loss.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/test_data.h"
#include "hopmix/kernels/gemm.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

struct Size {
  int64_t rows, width, vocabulary;
};

std::ostream& operator<<(std::ostream& out, const Size& size) {
  return out << "N" << size.rows << " D" << size.width << " V" << size.vocabulary;
}

template <typename T>
struct Problem {
  using A = Accumulator<T>;
  Size size;
  bool has_bias = true, weighted = true;
  std::vector<T> x, weight, bias, d_x, d_weight, d_bias;
  std::vector<int64_t> targets, guesses;
  std::vector<A> row_weights, losses, loss;

  explicit Problem(const Size& s, double largest = 1) : size(s) {
    x = random_values<T>(s.rows * s.width, 1, -largest, largest);
    weight = random_values<T>(s.vocabulary * s.width, 2);
    bias = random_values<T>(s.vocabulary, 3);
    row_weights = random_values<A>(s.rows, 4, 0, 2.0 / (1 + s.rows));
    std::mt19937 generator(5);
    std::uniform_int_distribution<int64_t> any(0, s.vocabulary - 1);
    for (int64_t i = 0; i < s.rows; ++i) targets.push_back(any(generator));
  }

  HeadLossInputs<T> inputs() const {
    return {x.data(),
            weight.data(),
            has_bias ? bias.data() : nullptr,
            targets.data(),
            weighted ? row_weights.data() : nullptr,
            size.rows,
            size.width,
            size.vocabulary};
  }

  // Its results without gradients, if none are wanted.
  void run(bool wants_x = true, bool wants_weight = true, bool wants_bias = true) {
    losses = unwritten<A>(size.rows);
    guesses.assign(size.rows, -1);
    d_x = unwritten<T>(x.size());
    d_weight = unwritten<T>(weight.size());
    d_bias = unwritten<T>(bias.size());
    loss = {head_loss<T>(inputs(), losses.data(), guesses.data(),
                         {wants_x ? d_x.data() : nullptr, wants_weight ? d_weight.data() : nullptr,
                          wants_bias && has_bias ? d_bias.data() : nullptr})};
  }

  std::vector<double> results() const {
    std::vector<double> all(guesses.begin(), guesses.end());
    for (const auto& part : {widened(loss), widened(losses), widened(d_x), widened(d_weight),
                             has_bias ? widened(d_bias) : std::vector<double>()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  // With all logits at once.
  void compare_with_reference() const {
    const auto in_x = widened(x), in_w = widened(weight), in_b = widened(bias);
    const auto [rows, width, vocabulary] = size;
    std::vector<double> e_losses(rows), e_x(x.size()), e_weight(weight.size()), e_bias(bias.size());
    double e_loss = 0;
    for (int64_t i = 0; i < rows; ++i) {
      std::vector<double> logits(vocabulary);
      for (int64_t v = 0; v < vocabulary; ++v) {
        logits[v] = has_bias ? in_b[v] : 0;
        for (int64_t c = 0; c < width; ++c) logits[v] += in_x[i * width + c] * in_w[v * width + c];
      }
      const double largest = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit - largest);
      e_losses[i] = largest + std::log(sum) - logits[targets[i]];
      const double share =
          weighted ? static_cast<double>(row_weights[i]) : 1 / static_cast<double>(rows);
      e_loss += share * e_losses[i];
      // Rounding may choose between the best ones.
      ASSERT_GE(logits[guesses[i]], largest - 1e-5 * (1 + std::abs(largest))) << "row " << i;
      for (int64_t v = 0; v < vocabulary; ++v) {
        const double p = std::exp(logits[v] - largest) / sum;
        const double g = share * (p - (v == targets[i] ? 1 : 0));
        e_bias[v] += g;
        for (int64_t c = 0; c < width; ++c) {
          e_x[i * width + c] += g * in_w[v * width + c];
          e_weight[v * width + c] += g * in_x[i * width + c];
        }
      }
    }
    expect_close(loss, {e_loss}, "loss");
    expect_close(losses, e_losses, "losses");
    expect_close(d_x, e_x, "d x");
    expect_close(d_weight, e_weight, "d weight");
    if (has_bias) expect_close(d_bias, e_bias, "d bias");
  }
};

// Every odd size; several strips, blocks and (the last) panels of rows.
const std::vector<Size> kSizes = {{0, 3, 5},      {1, 1, 1},     {2, 3, 2},      {63, 20, 64},
                                  {64, 64, 65},   {65, 100, 63}, {100, 16, 129}, {130, 7, 40},
                                  {1000, 5, 100}, {2100, 3, 33}};

template <typename T>
class HeadLossTest : public ::testing::Test {};
TYPED_TEST_SUITE(HeadLossTest, StorageTypes);

TYPED_TEST(HeadLossTest, MatchesTheReference) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(::testing::PrintToString(size));
    Problem<TypeParam> problem(size);
    problem.run();
    problem.compare_with_reference();
  }
}

TYPED_TEST(HeadLossTest, MatchesTheReferenceWithoutBiasAndAsAMean) {
  for (const bool bias : {false, true}) {
    Problem<TypeParam> problem({100, 20, 70});
    problem.has_bias = bias;
    problem.weighted = !bias;
    problem.run();
    problem.compare_with_reference();
  }
}

TYPED_TEST(HeadLossTest, EveryInstructionSetMatchesTheReference) {
  for_each_target([] {
    for (const Size& size : {Size{5, 3, 7}, Size{70, 33, 130}, Size{64, 16, 64}}) {
      Problem<TypeParam> problem(size);
      problem.run();
      problem.compare_with_reference();
    }
  });
}

TYPED_TEST(HeadLossTest, SameBitsForAnyNumberOfThreads) {
  for (const Size& size : {Size{300, 37, 200}, Size{2100, 2, 33}}) {
    expect_same_for_any_threads([&] {
      Problem<TypeParam> problem(size);
      problem.run();
      return problem.results();
    });
  }
}

TYPED_TEST(HeadLossTest, WhatIsLeftOutChangesNothingElse) {
  Problem<TypeParam> all({130, 20, 150});
  all.run();
  for (int alone = 0; alone < 4; ++alone) {
    Problem<TypeParam> some({130, 20, 150});
    some.run(alone == 0, alone == 1, alone == 2);
    EXPECT_TRUE(same_bits(some.loss, all.loss) && same_bits(some.losses, all.losses));
    EXPECT_EQ(some.guesses, all.guesses);
    EXPECT_TRUE(alone != 0 || same_bits(some.d_x, all.d_x));
    EXPECT_TRUE(alone != 1 || same_bits(some.d_weight, all.d_weight));
    EXPECT_TRUE(alone != 2 || same_bits(some.d_bias, all.d_bias));
  }
}

// Products of bfloat16 as such processors have them, here by their definition.
void bfloat16_products(int64_t m, int64_t n, int64_t k, const Bfloat16* a, int64_t lda,
                       const Bfloat16* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  ASSERT_EQ(k % 2, 0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = add ? c[i * ldc + j] : 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += static_cast<float>(a[i * lda + l]) *
               static_cast<float>(b[right_index<Bfloat16>(l, j, ldb)]);
      }
      c[i * ldc + j] = sum;
    }
  }
}

// Gradients of logits are rounded to 8 bits before they enter the products, nothing else is.
TEST(HeadLoss, ProductsOfBfloat16) {
  const GemmEngine before = gemm_engine();
  for (const Size& size : {Size{5, 3, 7}, Size{130, 21, 131}, Size{64, 16, 64}}) {
    Problem<Bfloat16> exact(size), rounded(size);
    use_gemm_engine(before);  // in float
    ASSERT_FALSE(has_bfloat16_gemm());
    exact.run();
    use_gemm_engine({"plain", nullptr, nullptr, bfloat16_products, nullptr});
    rounded.run();
    EXPECT_EQ(rounded.guesses, exact.guesses);
    expect_close(rounded.losses, widened(exact.losses), "losses");
    for (const auto& [part, of] :
         {std::pair(&rounded.d_x, &exact.d_x), std::pair(&rounded.d_weight, &exact.d_weight),
          std::pair(&rounded.d_bias, &exact.d_bias)}) {
      const auto values = widened(*part), expected = widened(*of);
      double largest = 0;
      for (const double e : expected) largest = std::max(largest, std::abs(e));
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_LE(std::abs(values[i] - expected[i]), std::ldexp(largest, -6)) << i;
      }
    }
  }
  use_gemm_engine(before);
}

// Panels of one strip each.
TEST(HeadLoss, LargeVocabulary) {
  Problem<float> problem({130, 1, 131'000});
  problem.run();
  problem.compare_with_reference();
}

TEST(HeadLoss, LargeLogitsStayExact) {
  Problem<float> problem({70, 20, 150}, /*largest=*/1e4);
  problem.run();
  problem.compare_with_reference();
}

// An entry that is ruled out, in a block with others and as all of a block.
TEST(HeadLoss, EntriesOfMinusInfinityCountForNothing) {
  for (const auto& [begin, end] : {std::pair(3, 4), std::pair(64, 128), std::pair(0, 64)}) {
    Problem<double> problem({40, 5, 150});
    for (int64_t v = begin; v < end; ++v) problem.bias[v] = -INFINITY;
    for (int64_t& target : problem.targets) target = target / 2 + 75;
    for (int64_t& target : problem.targets) target = std::max<int64_t>(target, 128);
    problem.run();
    problem.compare_with_reference();
    for (int64_t v = begin; v < end; ++v) EXPECT_EQ(problem.d_bias[v], 0);
  }
}

TEST(HeadLoss, OfEqualLogitsTheFirstIsTheGuess) {
  Problem<float> problem({3, 4, 200});
  std::fill(problem.x.begin(), problem.x.end(), 0.0f);
  std::fill(problem.bias.begin(), problem.bias.end(), 0.0f);
  for (const int64_t v : {70, 71, 150}) problem.bias[v] = 1;
  problem.run();
  EXPECT_EQ(problem.guesses, std::vector<int64_t>({70, 70, 70}));
}

TEST(HeadLoss, NanShows) {
  Problem<float> problem({70, 4, 200});
  problem.x[4 * 68] = NAN;
  problem.run();
  for (int64_t i = 0; i < 70; ++i) EXPECT_EQ(std::isnan(problem.losses[i]), i == 68);
  EXPECT_TRUE(std::isnan(problem.loss[0]) && std::isnan(problem.d_weight[0]));
}

TEST(HeadLoss, GradientsMatchFiniteDifferences) {
  Problem<double> p({7, 5, 70});
  p.run();
  const auto loss = [&] {
    return head_loss<double>(p.inputs(), p.losses.data(), p.guesses.data(), {});
  };
  expect_gradient(p.d_x, finite_differences(p.x, loss), "x");
  expect_gradient(p.d_weight, finite_differences(p.weight, loss), "weight");
  expect_gradient(p.d_bias, finite_differences(p.bias, loss), "bias");
}

}  // namespace
}  // namespace hopmix::kernels

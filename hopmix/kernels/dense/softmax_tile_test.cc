// The tile kernels against their definitions, in double.
#include "hopmix/kernels/dense/softmax_tile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace hopmix::kernels {
namespace {

template <typename A, typename O>
struct Types {
  using Sum = A;
  using Operand = O;
  /// Of a value near 1: the polynomial, a sum of up to 256 terms; the rounding to O.
  static constexpr double kSum = std::is_same_v<A, double> ? 1e-13 : 4e-6;
  static constexpr double kOperand = std::is_same_v<O, Bfloat16> ? 1.0 / 256 : kSum;
};

// Weights below the normal floats become 0.
constexpr double kTiny = std::numeric_limits<float>::min();

template <typename T>
class SoftmaxTile : public testing::Test {};
using AllTypes = testing::Types<Types<float, float>, Types<float, Bfloat16>, Types<double, double>>;
TYPED_TEST_SUITE(SoftmaxTile, AllTypes);

template <typename A>
std::vector<A> random(int64_t size, double low, double high, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<A> out(static_cast<size_t>(size));
  for (A& x : out) x = static_cast<A>(uniform(generator));
  return out;
}

template <typename O>
double value(O x) {
  if constexpr (std::is_same_v<O, Bfloat16>) {
    return static_cast<float>(x);
  } else {
    return x;
  }
}

struct Sizes {
  int64_t rows, cols, diagonal;
};
const std::vector<Sizes> kSizes = {{1, 16, 1},  {16, 16, 0},   {16, 16, 1},
                                   {40, 48, 3}, {64, 64, 0},   {128, 256, kNoDiagonal},
                                   {6, 32, -2}, {2, 112, 100}, {32, 96, kNoDiagonal}};

TYPED_TEST(SoftmaxTile, NanShowsWhereItIsVisible) {
  using A = typename TypeParam::Sum;
  using O = typename TypeParam::Operand;
  const int64_t rows = 40, cols = 48, width = 16, nan_at = 21;
  std::vector<A> scores = random<A>(rows * cols, -2, 2, 1), acc(rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    scores[r * cols + nan_at] = std::numeric_limits<A>::quiet_NaN();
  }
  std::vector<A> largest(rows, -std::numeric_limits<A>::infinity()), sum(rows);
  std::vector<O> p(rows * cols);
  tiles<A, O>().softmax({scores.data(), rows, cols, cols, A{1}}, 1, p.data(), cols, largest.data(),
                        sum.data(), acc.data(), width);
  for (int64_t r = 0; r < rows; ++r) {  // row r sees columns 0 ... r
    EXPECT_EQ(std::isnan(sum[r]), r >= nan_at) << r;
    EXPECT_EQ(std::isnan(value(p[r * cols + nan_at])), r >= nan_at) << r;
  }
}

// Two tiles after one another are one softmax over both.
TYPED_TEST(SoftmaxTile, OnlineSoftmaxOfTwoTiles) {
  using A = typename TypeParam::Sum;
  using O = typename TypeParam::Operand;
  for (const Sizes& s : kSizes) {
    for (const double factor : {1.3, -0.7, 300.0}) {
      const int64_t ld = s.cols + 16, width = 32;
      const std::vector<A> first = random<A>(s.rows * ld, -2, 2, 1);
      const std::vector<A> second = random<A>(s.rows * ld, -2, 2, 2);
      std::vector<A> acc = random<A>(s.rows * width, -1, 1, 3), before = acc;
      std::vector<A> largest(static_cast<size_t>(s.rows), -std::numeric_limits<A>::infinity());
      std::vector<A> sum(static_cast<size_t>(s.rows), 0);
      std::vector<O> p(static_cast<size_t>(s.rows * ld));
      const auto run = [&](const std::vector<A>& scores) {
        tiles<A, O>().softmax({scores.data(), s.rows, s.cols, ld, static_cast<A>(factor)},
                              s.diagonal, p.data(), ld, largest.data(), sum.data(), acc.data(),
                              width);
      };
      run(first);
      EXPECT_EQ(acc, before);  // nothing came before
      const std::vector<A> one_largest = largest;
      run(second);
      for (int64_t r = 0; r < s.rows; ++r) {
        const int64_t visible = std::clamp<int64_t>(s.diagonal + r, 0, s.cols);
        double most = -std::numeric_limits<double>::infinity(), total = 0;
        for (const auto* scores : {&first, &second}) {
          for (int64_t c = 0; c < visible; ++c)
            most = std::max(most, factor * (*scores)[r * ld + c]);
        }
        for (const auto* scores : {&first, &second}) {
          for (int64_t c = 0; c < visible; ++c) {
            total += std::exp2(factor * (*scores)[r * ld + c] - most);
          }
        }
        const double rounding = TypeParam::kSum * std::max(1.0, std::abs(factor));
        if (visible == 0) {
          EXPECT_EQ(sum[r], 0);
          EXPECT_LT(largest[r], 0);
        } else {
          EXPECT_NEAR(largest[r], most, rounding * 3);
          EXPECT_NEAR(sum[r], total, rounding * total);
        }
        for (int64_t c = 0; c < s.cols; ++c) {
          const double expected = c < visible ? std::exp2(factor * second[r * ld + c] - most) : 0.0;
          EXPECT_NEAR(value(p[r * ld + c]), expected,
                      expected * TypeParam::kOperand + rounding * expected + kTiny);
        }
        const double ratio = visible == 0 ? 1 : std::exp2(one_largest[r] - most);
        for (int64_t w = 0; w < width; ++w) {
          EXPECT_NEAR(acc[r * width + w], ratio * before[r * width + w], rounding);
        }
      }
    }
  }
}

TYPED_TEST(SoftmaxTile, Backward) {
  using A = typename TypeParam::Sum;
  using O = typename TypeParam::Operand;
  for (const Sizes& s : kSizes) {
    if (s.rows % 2 != 0) continue;
    const int64_t ld = s.cols + 16,
                  diagonal = s.diagonal == kNoDiagonal ? -kNoDiagonal : s.diagonal;
    const double factor = 1.3;
    const std::vector<A> scores = random<A>(s.rows * ld, -2, 2, 1);
    const std::vector<A> grad = random<A>(s.rows * ld, -1, 1, 2);
    std::vector<A> lse = random<A>(s.cols, 3, 6, 3), delta = random<A>(s.cols, -1, 1, 4);
    lse.back() = std::numeric_limits<A>::infinity();  // padding
    const size_t size = static_cast<size_t>(s.rows * ld);
    std::vector<A> weights(size);
    std::vector<O> p(size), ds(size), pairs(size);
    const ScoreTile<A> tile{scores.data(), s.rows, s.cols, ld, static_cast<A>(factor)};
    tiles<A, A>().weights(tile, diagonal, lse.data(), weights.data(), ld);
    tiles<A, O>().softmax_backward(tile, diagonal, lse.data(), delta.data(), grad.data(), p.data(),
                                   ds.data(), pairs.data());
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t c = 0; c < s.cols; ++c) {
        const int64_t at = r * ld + c;
        const double expected =
            c < diagonal + r ? 0.0 : std::exp2(factor * scores[at] - double{lse[c]});
        EXPECT_NEAR(weights[at], expected, 4 * TypeParam::kSum * expected);
        EXPECT_NEAR(value(p[at]), expected, (TypeParam::kOperand + 4 * TypeParam::kSum) * expected);
        const double d = expected * (double{grad[at]} - double{delta[c]});
        EXPECT_NEAR(value(ds[at]), d,
                    TypeParam::kOperand * std::abs(d) + 4 * TypeParam::kSum * expected);
        if (!std::is_same_v<A, O>) {
          EXPECT_EQ(value(pairs[(r / 2 * ld + c) * 2 + r % 2]), value(ds[at]));
        }
      }
    }
  }
}

// A NaN among the scores that a row sees is one in its weights, its sum and its solution; in what
// it does not see it is nothing.
TYPED_TEST(SoftmaxTile, NanIsKeptWhereItIsSeen) {
  using A = typename TypeParam::Sum;
  using O = typename TypeParam::Operand;
  constexpr int64_t kRows = 16, kCols = 48, kWidth = 16;
  for (const int64_t bad : {0, 5, 15, 16, 31, 33, 47}) {
    std::vector<A> scores = random<A>(kRows * kCols, -2, 2, 1);
    for (int64_t r = 0; r < kRows; ++r)
      scores[r * kCols + bad] = std::numeric_limits<A>::quiet_NaN();
    const ScoreTile<A> tile{scores.data(), kRows, kCols, kCols, A{1}};
    std::vector<A> largest(kRows, -std::numeric_limits<A>::infinity()), sum(kRows, 0);
    std::vector<A> acc(kRows * kWidth, 0), weights(kRows * kCols), lse(kCols, 9);
    std::vector<O> p(kRows * kCols);
    const int64_t diagonal = 30;
    tiles<A, O>().softmax(tile, diagonal, p.data(), kCols, largest.data(), sum.data(), acc.data(),
                          kWidth);
    tiles<A, A>().weights(tile, diagonal, lse.data(), weights.data(), kCols);
    for (int64_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(std::isnan(sum[r]), bad < diagonal + r) << r << " " << bad;
      EXPECT_EQ(std::isnan(value(p[r * kCols + bad])), bad < diagonal + r);
      EXPECT_EQ(std::isnan(weights[r * kCols + bad]), bad >= diagonal + r);
    }
    const std::vector<A> zero(kRows * kCols, 0), gate(kRows, A{0.5});
    std::vector<A> mix(kRows * kWidth, 1), w = mix;
    tiles<A, A>().substitute(kRows, kWidth, /*self=*/true, zero.data(), kCols, sum.data(),
                             gate.data(), mix.data(), w.data());
    for (int64_t r = 0; r < kRows; ++r) EXPECT_EQ(std::isnan(w[r * kWidth]), std::isnan(sum[r]));
  }
}

// Where neighbouring floats are further apart than any exponent, a weight is still at most 1.
TYPED_TEST(SoftmaxTile, WeightsOfEnormousScoresAreWeights) {
  using A = typename TypeParam::Sum;
  using O = typename TypeParam::Operand;
  constexpr int64_t kRows = 16, kCols = 64;
  for (const double size : {1e8, 1e12, 1e20, 1e30}) {
    const std::vector<A> scores = random<A>(kRows * kCols, -size, size, 1);
    const A factor = static_cast<A>(0.7213475204);
    const ScoreTile<A> tile{scores.data(), kRows, kCols, kCols, factor};
    std::vector<A> largest(kRows, -std::numeric_limits<A>::infinity()), sum(kRows, 0);
    std::vector<A> acc, weights(kRows * kCols), lse(kCols, static_cast<A>(-size));
    std::vector<O> p(kRows * kCols);
    tiles<A, O>().softmax(tile, kNoDiagonal, p.data(), kCols, largest.data(), sum.data(),
                          acc.data(), 0);
    tiles<A, A>().weights(tile, -kNoDiagonal, lse.data(), weights.data(), kCols);
    for (int64_t r = 0; r < kRows; ++r) {
      EXPECT_GE(sum[r], 0.9);
      EXPECT_LE(sum[r], kCols);
      for (int64_t c = 0; c < kCols; ++c) {
        EXPECT_GE(value(p[r * kCols + c]), 0);
        EXPECT_LE(value(p[r * kCols + c]), 1);
        EXPECT_GE(weights[r * kCols + c], 0);
        EXPECT_LE(weights[r * kCols + c], 1);
      }
    }
  }
}

TYPED_TEST(SoftmaxTile, SubstitutionSolvesItsEquations) {
  using A = typename TypeParam::Sum;
  for (const int64_t n : {1, 2, 16}) {
    for (const int64_t width : {16, 48, 64, 112}) {
      for (const bool self : {false, true}) {
        const int64_t ld = 32;
        const std::vector<A> p = random<A>(n * ld, 0, 1, 1), start = random<A>(n * width, -1, 1, 2);
        const std::vector<A> c = random<A>(n * width, -1, 1, 3), gate = random<A>(n, -0.9, 0.9, 4);
        std::vector<A> sum = random<A>(n, static_cast<double>(n), n + 2.0, 5), acc = start, w = c;
        if (!self) sum[0] = 0;
        tiles<A, A>().substitute(n, width, self, p.data(), ld, sum.data(), gate.data(), acc.data(),
                                 w.data());
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t x = 0; x < width; ++x) {
            double mix = start[i * width + x];
            for (int64_t j = 0; j < i + (self ? 1 : 0); ++j) {
              mix += double{p[i * ld + j]} * w[j * width + x];
            }
            mix = sum[i] > 0 ? mix / sum[i] : 0;
            EXPECT_NEAR(acc[i * width + x], mix, TypeParam::kSum * 4);
            EXPECT_NEAR(w[i * width + x], c[i * width + x] + gate[i] * mix, TypeParam::kSum * 4);
          }
        }

        // Transposed and normalized weights.
        std::vector<A> q = random<A>(n * ld, 0, 1.0 / static_cast<double>(n), 6);
        const std::vector<A> direct = random<A>(n * width, -1, 1, 7);
        std::vector<A> l = start, h = direct;
        tiles<A, A>().substitute_backward(n, width, self, q.data(), ld, gate.data(), l.data(),
                                          h.data());
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t x = 0; x < width; ++x) {
            double expected = start[j * width + x];
            for (int64_t i = self ? j : j + 1; i < n; ++i) {
              expected += double{q[j * ld + i]} * h[i * width + x];
            }
            EXPECT_NEAR(l[j * width + x], expected, TypeParam::kSum * 10);
            EXPECT_NEAR(h[j * width + x],
                        direct[j * width + x] + double{gate[j]} * l[j * width + x],
                        TypeParam::kSum * 10);
          }
        }
      }
    }
  }
}

TEST(TransposeWords, IsTheTranspose) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<int64_t, int64_t>>{{4, 4}, {16, 8}, {12, 64}}) {
    const int64_t stride = cols + 3, ld = rows + 5;
    const std::vector<float> x = random<float>(rows * stride, -1, 1, 1);
    std::vector<float> y(static_cast<size_t>(cols * ld), 7);
    transpose_words(x.data(), rows, cols, stride, y.data(), ld);
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t r = 0; r < ld; ++r) {
        EXPECT_EQ(y[c * ld + r], r < rows ? x[r * stride + c] : 7);
      }
    }
  }
}

}  // namespace
}  // namespace hopmix::kernels

// The selection against a sort of all that a row sees.
#include "hopmix/kernels/dense/top_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

template <typename A>
class TopScoresOf : public ::testing::Test {};
using AllTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(TopScoresOf, AllTypes);

template <typename A>
struct Matrix {
  int64_t rows, cols, ld;
  std::vector<A> scores;

  Matrix(int64_t r, int64_t c, const std::function<A(std::mt19937&)>& make)
      : rows(r), cols(c), ld(c + 3), scores(static_cast<size_t>(rows * ld + kTileLanes)) {
    std::mt19937 generator(7);
    for (A& x : scores) x = make(generator);
  }
};

// A number beats NaN, a larger score a smaller one, an earlier column a later one.
template <typename A>
std::vector<int32_t> literal(const A* scores, int64_t visible, int64_t kappa, int64_t block) {
  std::vector<A> best;
  for (int64_t c = 0; c < visible; ++c) {
    if (c % block == 0) best.push_back(std::numeric_limits<A>::quiet_NaN());
    if (std::isnan(best.back()) || scores[c] > best.back()) best.back() = scores[c];
  }
  std::vector<int32_t> order(best.size());
  for (size_t c = 0; c < order.size(); ++c) order[c] = static_cast<int32_t>(c);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return best[a] > best[b] || (!std::isnan(best[a]) && std::isnan(best[b]));
  });
  order.resize(static_cast<size_t>(kappa), -1);
  return order;
}

struct Options {
  int64_t kappa, block = 1, tile = 256, diagonal = kNoDiagonal;
};

/// Offers the matrix by tiles of `tile` columns; of the last one, row r sees `diagonal + r`.
template <typename A>
void expect_literal(const Matrix<A>& m, const Options& o) {
  SCOPED_TRACE(::testing::Message()
               << m.rows << " x " << m.cols << ", kappa " << o.kappa << ", blocks of " << o.block
               << ", tiles of " << o.tile << ", diagonal " << o.diagonal);
  TopScores<A> top(m.rows, {o.kappa, o.block});
  for (int round = 0; round < 2; ++round) {  // nothing of the first is left in the second
    top.clear();
    const int64_t last = (m.cols - 1) / o.tile * o.tile;
    for (int64_t c = 0; c <= last; c += o.tile) {
      const ScoreTile<A> tile{m.scores.data() + c, m.rows, std::min(o.tile, m.cols - c), m.ld, 1};
      top.offer(tile, c == last ? o.diagonal : kNoDiagonal, c);
    }
    for (int64_t r = 0; r < m.rows; ++r) {
      const int64_t visible = last + std::clamp<int64_t>(o.diagonal + r, 0, m.cols - last);
      std::vector<int32_t> actual(static_cast<size_t>(o.kappa + 2), 77);
      top.take(r, o.kappa + 2, actual.data());
      ASSERT_EQ(actual[o.kappa], -1);  // more places than kappa
      ASSERT_EQ(actual[o.kappa + 1], -1);
      actual.resize(static_cast<size_t>(o.kappa));
      const A* scores = m.scores.data() + r * m.ld;
      ASSERT_EQ(actual, literal(scores, visible, o.kappa, o.block)) << "row " << r;
    }
  }
}

template <typename A>
A normal(std::mt19937& g) {
  return std::normal_distribution<A>()(g);
}

TYPED_TEST(TopScoresOf, EverySizeOnEveryTarget) {
  using A = TypeParam;
  testing::for_each_target([] {
    for (const int64_t cols : {1, 2, 15, 16, 17, 63, 64, 65, 100, 256, 1000}) {
      const Matrix<A> m(3, cols, normal<A>);
      for (const int64_t kappa : {1, 2, 8, 31, 32, 33, 64, 100, 129, 300}) {
        expect_literal(m, {kappa});
      }
    }
  });
}

TYPED_TEST(TopScoresOf, TilesAndDiagonals) {
  const Matrix<TypeParam> m(40, 300, normal<TypeParam>);
  for (const int64_t tile : {1, 16, 48, 256, 300}) {
    for (const int64_t diagonal : {-3, 0, 1, 20}) {
      for (const int64_t block : {1, 5, 64}) expect_literal(m, {9, block, tile, diagonal});
    }
  }
}

TYPED_TEST(TopScoresOf, TiesGoToTheEarlier) {
  using A = TypeParam;
  testing::for_each_target([] {
    for (const int values : {1, 2, 5, 40}) {
      const Matrix<A> m(4, 1000, [values](std::mt19937& g) {
        const A x =
            static_cast<A>(static_cast<int>(g() % static_cast<unsigned>(values)) - values / 2);
        return x == 0 && g() % 2 == 0 ? -x : x;  // -0 is 0
      });
      for (const int64_t kappa : {1, 7, 32, 150}) {
        for (const int64_t block : {1, 3}) expect_literal(m, {kappa, block, 256, 990});
      }
    }
  });
}

TYPED_TEST(TopScoresOf, ScoresInOrder) {
  using A = TypeParam;
  for (const int sign : {1, -1}) {
    int n = 0;
    const Matrix<A> m(2, 2000, [&](std::mt19937&) { return static_cast<A>(sign * n++); });
    for (const int64_t kappa : {1, 32, 200}) expect_literal(m, {kappa});
  }
}

TYPED_TEST(TopScoresOf, WhatIsNoNumberComesLast) {
  using A = TypeParam;
  using Limits = std::numeric_limits<A>;
  const std::vector<A> odd = {Limits::quiet_NaN(),
                              -Limits::quiet_NaN(),
                              Limits::infinity(),
                              -Limits::infinity(),
                              Limits::max(),
                              Limits::lowest(),
                              Limits::denorm_min(),
                              -Limits::denorm_min(),
                              0,
                              -A{0}};
  testing::for_each_target([&] {
    for (const unsigned some : {1u, 3u, 50u}) {  // one in so many
      const Matrix<A> m(8, 700, [&](std::mt19937& g) {
        return g() % some == 0 ? odd[g() % odd.size()] : normal<A>(g);
      });
      for (const int64_t block : {1, 2, 7}) {
        for (const int64_t kappa : {1, 32, 700}) expect_literal(m, {kappa, block});
      }
    }
    const Matrix<A> none(2, 300, [&](std::mt19937& g) { return odd[g() % 2]; });
    expect_literal(none, {32});
    const Matrix<A> lowest(2, 300, [&](std::mt19937& g) { return odd[g() % 2 == 0 ? 0 : 3]; });
    expect_literal(lowest, {32});
  });
}

TYPED_TEST(TopScoresOf, BlocksOfAnySize) {
  using A = TypeParam;
  const Matrix<A> m(20, 600, normal<A>);
  testing::for_each_target([&] {
    for (const int64_t block : {2, 3, 15, 16, 17, 64, 100, 256, 300, 599, 600, 5000}) {
      for (const int64_t tile : {64, 256}) expect_literal(m, {5, block, tile, 3});
    }
  });
}

}  // namespace
}  // namespace hopmix::kernels

// The loops of chunked recurrences against their definitions, on every instruction set. The
// operators on top of them are tested in tests/python.
#include "hopmix/kernels/chunked/chunk_loops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "hopmix/kernels/base/test_data.h"
#include "hopmix/kernels/chunked/decay_tree_loops.h"

namespace hopmix::kernels {
namespace {

using testing::for_each_target;

template <typename A>
std::vector<A> random(int64_t size, double low, double high, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<A> out(static_cast<size_t>(size));
  for (A& x : out) x = static_cast<A>(uniform(generator));
  return out;
}

template <typename A>
class ChunkLoopsTest : public ::testing::Test {
 protected:
  static constexpr double kNear = std::is_same_v<A, double> ? 1e-14 : 2e-6;

  static void expect_near(const std::vector<A>& actual, const std::vector<double>& expected,
                          double terms = 1) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i],
                  kNear * std::sqrt(terms) * std::max(1.0, std::abs(expected[i])))
          << i;
    }
  }
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ChunkLoopsTest, Types);

TYPED_TEST(ChunkLoopsTest, MaskAndDecays) {
  using A = TypeParam;
  for_each_target([&] {
    for (const int64_t n : {16, 48, 64}) {
      for (const bool transposed : {false, true}) {
        // One strong decay: the differences behind it keep their digits.
        std::vector<A> high(n), low(n);
        std::vector<long double> sums(n);
        long double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
          sum -= i == 11 ? 900.0L : 0.03L * static_cast<long double>(i % 5);
          sums[i] = sum;
          high[i] = static_cast<A>(sum);
          low[i] = static_cast<A>(sum - static_cast<long double>(high[i]));
        }
        std::vector<A> x = random<A>(n * n, -1, 1, 1), m(n * n), y(n * n);
        std::vector<double> decays(n * n), masked(n * n), visible(n * n);
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const int64_t query = transposed ? j : i, key = transposed ? i : j;
            if (key > query) {  // what is hidden may be anything
              x[i * n + j] = std::numeric_limits<A>::quiet_NaN();
              continue;
            }
            decays[i * n + j] = static_cast<double>(std::exp(sums[query] - sums[key]));
            visible[i * n + j] = x[i * n + j];
            masked[i * n + j] = x[i * n + j] * decays[i * n + j];
          }
        }
        const ChunkLoops<A> loops = chunk_loops<A>();
        loops.decays(high.data(), low.data(), n, transposed, m.data());
        this->expect_near(m, decays);
        loops.mask(x.data(), m.data(), n, transposed, y.data());
        this->expect_near(y, masked);
        loops.mask(x.data(), nullptr, n, transposed, x.data());
        this->expect_near(x, visible);
      }
    }
  });
}

TYPED_TEST(ChunkLoopsTest, DecayGradientIsTheSumOverPairsAcross) {
  using A = TypeParam;
  for_each_target([&] {
    for (const int64_t n : {16, 64}) {
      std::vector<A> a = random<A>(n * n, -1, 1, 2), da = random<A>(n * n, -1, 1, 3);
      std::vector<A> scratch(n), dg(n);
      std::vector<double> expected(n);
      for (int64_t key = 0; key < n; ++key) {
        for (int64_t query = 0; query < n; ++query) {
          if (query < key) a[key * n + query] = 0;  // hidden
          for (int64_t r = key + 1; r <= query; ++r) {
            expected[r] += static_cast<double>(a[key * n + query]) * da[key * n + query];
          }
        }
      }
      chunk_loops<A>().decay_gradient(a.data(), da.data(), n, scratch.data(), dg.data());
      this->expect_near(dg, expected, static_cast<double>(n * n) / 4);
    }
  });
}

TYPED_TEST(ChunkLoopsTest, TilesGoInAndOut) {
  using A = TypeParam;
  for_each_target([&] {
    for (const int64_t width : {1, 15, 16, 20, 64}) {
      const int64_t length = 5, rows = 16, stride = width + 3, ld = (width + 15) / 16 * 16;
      const std::vector<A> x = random<A>(length * stride, -1, 1, 4);
      std::vector<A> tile(rows * ld, std::numeric_limits<A>::quiet_NaN()), back(x.size(), A{7});
      tile_loops<A>().load(x.data(), stride, length, width, A{2}, tile.data(), rows, ld);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t c = 0; c < ld; ++c) {
          ASSERT_EQ(tile[i * ld + c], i < length && c < width ? 2 * x[i * stride + c] : 0);
        }
      }
      tile_loops<A>().store(tile.data(), ld, length, width, A{0.5}, back.data(), stride);
      for (int64_t i = 0; i < length * stride; ++i) {
        ASSERT_EQ(back[i], i % stride < width ? x[i] : 7);
      }
    }
  });
}

TEST(RoundingLoops, RoundAsBfloat16DoesAndInterleave) {
  for_each_target([&] {
    const int64_t rows = 16, width = 32;
    const std::vector<float> x = random<float>(rows * width, -3, 3, 5);
    std::vector<Bfloat16> left(x.size()), right(x.size());
    rounding_loops().left(x.data(), rows * width, left.data());
    rounding_loops().right(x.data(), rows, width, right.data());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        const uint16_t expected = Bfloat16(x[i * width + c]).bits;
        ASSERT_EQ(left[i * width + c].bits, expected);
        ASSERT_EQ(right[(i / 2 * width + c) * 2 + i % 2].bits, expected);
      }
    }
  });
}

// Up the tree, every factor is the product of decays that it stands for; `behind` agrees.
TYPED_TEST(ChunkLoopsTest, TheTreeMultipliesDecays) {
  using A = TypeParam;
  for_each_target([&] {
    for (const int64_t n : {16, 48, 64}) {
      const int64_t width = 16;
      const std::vector<A> g = random<A>(n * width, -1, 0, 6), k0 = random<A>(n * width, -1, 1, 7);
      std::vector<A> q(n * width), k = k0, sums = g, d(n * width);
      const DecayTreeLoops<A> loops = decay_tree_loops<A>();
      loops.powers(g.data(), n * width, q.data());  // P of ones
      for (int64_t h = 1; h < n; h *= 2) {
        loops.powers(sums.data(), (n + h - 1) / h * width, d.data());
        loops.join_readers(n, width, h, q.data(), d.data(), q.data());
        loops.join_keys(n, width, h, k.data(), d.data(), k.data());
        loops.join_sums(n, width, h, sums.data());
      }
      std::vector<double> from_start(n * width), to_end(n * width), all(width);
      for (int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i)
          from_start[i * width + c] = std::exp(sum += g[i * width + c]);
        all[c] = std::exp(sum);
        sum = 0;
        for (int64_t i = n - 1; i >= 0; --i) {
          to_end[i * width + c] = k0[i * width + c] * std::exp(sum);
          sum += g[i * width + c];
        }
      }
      this->expect_near(q, from_start);
      this->expect_near(k, to_end);
      std::vector<A> behind(n * width), through(width);
      loops.behind(n, width, g.data(), k0.data(), behind.data(), through.data());
      this->expect_near(behind, to_end);
      this->expect_near(through, all);
    }
  });
}

}  // namespace
}  // namespace hopmix::kernels

#include "hopmix/kernels/gemm.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

template <typename A>
std::vector<A> random(int64_t size, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<A> out(static_cast<size_t>(size));
  for (A& x : out) x = static_cast<A>(uniform(generator));
  return out;
}

struct Size {
  int64_t m, n, k;
};

// Every tail of rows and columns, depths around the loops' own, and nothing.
const std::vector<Size> kSizes = {{1, 1, 1},     {1, 64, 64},  {6, 16, 64},    {13, 48, 7},
                                  {12, 32, 16},  {64, 64, 64}, {5, 3, 20},     {65, 100, 63},
                                  {23, 17, 300}, {2, 15, 128}, {100, 20, 129}, {0, 5, 5},
                                  {5, 0, 5},     {5, 33, 0}};

template <typename A>
class GemmTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GemmTest, Types);

// C (+)= A B by its definition; what lies between the rows of C stays.
TYPED_TEST(GemmTest, IsTheSumOfProducts) {
  using A = TypeParam;
  testing::for_each_target([] {
    for (const auto& [m, n, k] : kSizes) {
      for (const bool add : {false, true}) {
        SCOPED_TRACE(::testing::PrintToString(std::vector{m, n, k, int64_t{add}}));
        const int64_t lda = k + 3, ldb = n + 5, ldc = n + 1;
        const auto a = random<A>(m * lda, 1), b = random<A>(k * ldb, 2);
        const auto before = random<A>(m * ldc, 3);
        auto c = before;
        multiply<A>(m, n, k, a.data(), lda, b.data(), ldb, c.data(), ldc, add);
        for (int64_t i = 0; i < m; ++i) {
          EXPECT_EQ(c[i * ldc + n], before[i * ldc + n]);
          for (int64_t j = 0; j < n; ++j) {
            double sum = add ? static_cast<double>(before[i * ldc + j]) : 0, size = std::abs(sum);
            for (int64_t l = 0; l < k; ++l) {
              const double term = static_cast<double>(a[i * lda + l]) * b[l * ldb + j];
              sum += term;
              size += std::abs(term);
            }
            const double bound = (k + 1) * size * std::numeric_limits<A>::epsilon();
            ASSERT_LE(std::abs(c[i * ldc + j] - sum), bound) << i << ", " << j;
          }
        }
      }
    }
  });
}

TYPED_TEST(GemmTest, ARowDoesNotDependOnTheRowsAroundIt) {
  using A = TypeParam;
  testing::for_each_target([] {
    const int64_t m = 29, n = 83, k = 50;
    const auto a = random<A>(m * k, 1), b = random<A>(k * n, 2);
    std::vector<A> together(m * n), alone(m * n);
    multiply<A>(m, n, k, a.data(), k, b.data(), n, together.data(), n, false);
    for (int64_t i = 0; i < m; ++i) {
      multiply<A>(1, n, k, a.data() + i * k, k, b.data(), n, alone.data() + i * n, n, false);
    }
    EXPECT_EQ(together, alone);
  });
}

TEST(GemmEngine, LoopsServeWhatAnEngineLeavesOut) {
  const GemmEngine before = gemm_engine();
  use_gemm_engine({"empty", nullptr, nullptr, nullptr, nullptr});
  EXPECT_STREQ(gemm_engine().name, "empty");
  EXPECT_FALSE(has_bfloat16_gemm());
  const float a = 2, b = 3;
  float c = 0;
  multiply<float>(1, 1, 1, &a, 1, &b, 1, &c, 1, false);
  release_gemm();
  EXPECT_EQ(c, 6);
  use_gemm_engine(before);
}

}  // namespace
}  // namespace hopmix::kernels

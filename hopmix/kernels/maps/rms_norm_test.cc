#include "hopmix/kernels/maps/rms_norm.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

constexpr double kEps = 1e-6;

template <typename T>
struct Problem {
  int64_t rows, width;
  std::vector<T> x, weight, grad_y, y, d_x, d_weight;

  Problem(int64_t n, int64_t e, double largest = 1) : rows(n), width(e) {
    x = random_values<T>(n * e, 1, -largest, largest);
    weight = random_values<T>(e, 2);
    grad_y = random_values<T>(n * e, 3);
  }

  RmsNormInputs<T> inputs() const { return {x.data(), weight.data(), rows, width, kEps}; }

  void run() {
    y = unwritten<T>(x.size());
    d_x = unwritten<T>(x.size());
    d_weight = unwritten<T>(weight.size());
    rms_norm(inputs(), y.data());
    rms_norm_backward<T>(inputs(), grad_y.data(), {d_x.data(), d_weight.data()});
  }

  std::vector<double> results() const {
    std::vector<double> all;
    for (const auto* part : {&y, &d_x, &d_weight}) {
      const auto values = widened(*part);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  // By the definition; y_c depends on x_k through x_c and through the mean.
  void compare_with_reference() const {
    const auto in_x = widened(x), in_w = widened(weight), in_g = widened(grad_y);
    std::vector<double> e_y(x.size()), e_x(x.size()), e_weight(weight.size());
    for (int64_t i = 0; i < rows; ++i) {
      const double *row = in_x.data() + i * width, *grad = in_g.data() + i * width;
      double mean = 0;
      for (int64_t c = 0; c < width; ++c) mean += row[c] * row[c] / static_cast<double>(width);
      const double rms = std::sqrt(mean + kEps);
      for (int64_t c = 0; c < width; ++c) {
        e_y[i * width + c] = row[c] / rms * in_w[c];
        e_weight[c] += grad[c] * row[c] / rms;
      }
      for (int64_t k = 0; k < width; ++k) {
        double sum = 0;
        for (int64_t c = 0; c < width; ++c) {
          const double through_mean =
              row[c] * row[k] / (static_cast<double>(width) * rms * rms * rms);
          sum += grad[c] * in_w[c] * ((c == k ? 1 / rms : 0) - through_mean);
        }
        e_x[i * width + k] = sum;
      }
    }
    expect_close(y, e_y, "y");
    expect_close(d_x, e_x, "d x");
    expect_close(d_weight, e_weight, "d weight");
  }
};

template <typename T>
class RmsNormTest : public ::testing::Test {};
TYPED_TEST_SUITE(RmsNormTest, StorageTypes);

TYPED_TEST(RmsNormTest, MatchesTheReference) {
  for (const int64_t rows : {0, 1, 2, 63, 127, 128, 129, 300}) {
    for (const int64_t width : {1, 3, 20, 64, 100, 130}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
      Problem<TypeParam> problem(rows, width);
      problem.run();
      problem.compare_with_reference();
    }
  }
}

TYPED_TEST(RmsNormTest, EveryInstructionSetMatchesTheReference) {
  for_each_target([] {
    for (const int64_t width : {1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100}) {
      Problem<TypeParam> problem(5, width);
      problem.run();
      problem.compare_with_reference();
    }
  });
}

TYPED_TEST(RmsNormTest, SameBitsForAnyNumberOfThreads) {
  expect_same_for_any_threads([] {
    Problem<TypeParam> problem(1000, 37);
    problem.run();
    return problem.results();
  });
}

TYPED_TEST(RmsNormTest, GradientsAreWrittenAlone) {
  Problem<TypeParam> p(200, 20);
  p.run();
  std::vector<TypeParam> d_x = unwritten<TypeParam>(p.x.size());
  std::vector<TypeParam> d_weight = unwritten<TypeParam>(p.weight.size());
  rms_norm_backward<TypeParam>(p.inputs(), p.grad_y.data(), {d_x.data(), nullptr});
  rms_norm_backward<TypeParam>(p.inputs(), p.grad_y.data(), {nullptr, d_weight.data()});
  EXPECT_TRUE(same_bits(d_x, p.d_x));
  EXPECT_TRUE(same_bits(d_weight, p.d_weight));
}

// Where eps decides, and where the squares are large.
TEST(RmsNorm, SmallAndLargeRowsStayExact) {
  for (const double largest : {1e-3, 1e15}) {
    Problem<float> problem(70, 20, largest);
    problem.run();
    problem.compare_with_reference();
  }
  Problem<float> zero(2, 5, 0);
  zero.run();
  for (const float y : zero.y) EXPECT_EQ(y, 0);
}

TEST(RmsNorm, GradientsMatchFiniteDifferences) {
  Problem<double> p(7, 5);
  p.run();
  const auto loss = [&] {
    rms_norm(p.inputs(), p.y.data());
    return inner_product(p.y, p.grad_y);
  };
  expect_gradient(p.d_x, finite_differences(p.x, loss), "x");
  expect_gradient(p.d_weight, finite_differences(p.weight, loss), "weight");
}

}  // namespace
}  // namespace hopmix::kernels

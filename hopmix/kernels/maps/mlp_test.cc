#include "hopmix/kernels/maps/mlp.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/test_data.h"
#include "hopmix/kernels/maps/gelu_loops.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

double gelu(double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double gelu_derivative(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) +
         x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::acos(-1.0));
}

TEST(Gelu, IsExactInBothTails) {
  std::vector<float> x;
  for (double v = -14; v <= 14; v += 0.0137) x.push_back(static_cast<float>(v));
  x.insert(x.end(), {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f});
  const std::vector<float> ones(x.size(), 1.0f);
  for_each_target([&] {
    for (const size_t n : {x.size(), size_t{1}, size_t{7}}) {
      std::vector<float> y(n), back(n), derivative(n);
      gelu_loops<float>().forward(static_cast<int64_t>(n), x.data(), y.data());
      gelu_loops<float>().backward(static_cast<int64_t>(n), x.data(), ones.data(), back.data(),
                                   derivative.data());
      EXPECT_TRUE(same_bits(y, back));
      for (size_t i = 0; i < n; ++i) {
        const double v = x[i], expected = gelu(v);
        // Relative: e^(-x^2 / 2) has the rounding of x^2 / 2, up to 98.
        const double error = 1e-6 * std::max(1.0, 0.1 * v * v);
        ASSERT_TRUE(std::abs(y[i] - expected) <= error * std::abs(expected) + 1e-37) << v;
        const double derivative_error = 1e-6 * std::max(1.0, std::min(10.0, std::abs(v)));
        ASSERT_TRUE(std::abs(derivative[i] - gelu_derivative(v)) <= derivative_error) << v;
      }
    }
  });
}

TEST(Gelu, KeepsNaN) {
  const float x = std::numeric_limits<float>::quiet_NaN();
  float y = 0;
  gelu_loops<float>().forward(1, &x, &y);
  EXPECT_TRUE(std::isnan(y));
}

template <typename T>
struct Problem {
  int64_t rows, width, hidden, outputs;
  std::vector<T> x, up, up_bias, down, down_bias, grad_y, h, y;
  std::vector<std::vector<T>> grads;

  Problem(int64_t n, int64_t w, int64_t m, int64_t o) : rows(n), width(w), hidden(m), outputs(o) {
    const auto share = [](int64_t depth) { return 1 / std::sqrt(static_cast<double>(depth)); };
    x = random_values<T>(n * w, 1);
    up = random_values<T>(m * w, 2, -3 * share(w), 3 * share(w));
    up_bias = random_values<T>(m, 3);
    down = random_values<T>(o * m, 4, -share(m), share(m));
    down_bias = random_values<T>(o, 5);
    grad_y = random_values<T>(n * o, 6);
  }

  MlpInputs<T> inputs() const {
    return {x.data(), up.data(), up_bias.data(), down.data(), down_bias.data(),
            rows,     width,     hidden,         outputs};
  }

  void run() {
    h = unwritten<T>(rows * hidden);
    y = unwritten<T>(rows * outputs);
    grads.clear();
    for (const auto* in : {&x, &up, &up_bias, &down, &down_bias}) {
      grads.push_back(unwritten<T>(in->size()));
    }
    mlp_forward(inputs(), h.data(), y.data());
    mlp_backward(
        inputs(), h.data(), grad_y.data(),
        {grads[0].data(), grads[1].data(), grads[2].data(), grads[3].data(), grads[4].data()});
  }

  std::vector<double> results() const {
    std::vector<double> all = widened(y);
    for (const auto& grad : grads) {
      const auto values = widened(grad);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  // The backward begins with the hidden numbers as they were stored.
  void compare_with_definition() const {
    const auto in_x = widened(x), in_u = widened(up), in_a = widened(up_bias), in_d = widened(down),
               in_b = widened(down_bias), in_g = widened(grad_y), kept = widened(h);
    std::vector<double> e_h(h.size()), e_y(y.size());
    std::vector<std::vector<double>> e(5);
    for (size_t i = 0; i < 5; ++i) e[i].resize(grads[i].size());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t o = 0; o < outputs; ++o) {
        e_y[i * outputs + o] = in_b[o];
        e[4][o] += in_g[i * outputs + o];
      }
      for (int64_t m = 0; m < hidden; ++m) {
        double sum = in_a[m], back = 0;
        for (int64_t c = 0; c < width; ++c) sum += in_x[i * width + c] * in_u[m * width + c];
        e_h[i * hidden + m] = sum;
        const double stored = kept[i * hidden + m], active = gelu(stored);
        const double rounded = widened(std::vector{T(static_cast<Accumulator<T>>(active))})[0];
        for (int64_t o = 0; o < outputs; ++o) {
          e_y[i * outputs + o] += rounded * in_d[o * hidden + m];
          back += in_g[i * outputs + o] * in_d[o * hidden + m];
          e[3][o * hidden + m] += in_g[i * outputs + o] * active;
        }
        back *= gelu_derivative(stored);
        e[2][m] += back;
        for (int64_t c = 0; c < width; ++c) {
          e[0][i * width + c] += back * in_u[m * width + c];
          e[1][m * width + c] += back * in_x[i * width + c];
        }
      }
    }
    expect_close(h, e_h, "h");
    expect_close(y, e_y, "y");
    for (size_t i = 0; i < 5; ++i) expect_close(grads[i], e[i], "gradient " + std::to_string(i));
  }
};

template <typename T>
class MlpTest : public ::testing::Test {};
TYPED_TEST_SUITE(MlpTest, StorageTypes);

TYPED_TEST(MlpTest, MatchesTheDefinition) {
  for (const auto& [rows, width, hidden, outputs] : {std::array<int64_t, 4>{0, 3, 5, 3},
                                                     {1, 64, 128, 64},
                                                     {2, 20, 41, 3},
                                                     {63, 3, 20, 100},
                                                     {96, 20, 41, 64},
                                                     {97, 64, 100, 20},
                                                     {513, 20, 40, 20}}) {
    SCOPED_TRACE(::testing::PrintToString(std::vector{rows, width, hidden, outputs}));
    Problem<TypeParam> problem(rows, width, hidden, outputs);
    problem.run();
    problem.compare_with_definition();
  }
}

TYPED_TEST(MlpTest, EveryInstructionSet) {
  for_each_target([] {
    Problem<TypeParam> problem(100, 17, 33, 20);
    problem.run();
    problem.compare_with_definition();
  });
}

TYPED_TEST(MlpTest, SameBitsForAnyThreads) {
  Problem<TypeParam> problem(700, 64, 128, 64);
  expect_same_for_any_threads([&] {
    problem.run();
    return problem.results();
  });
}

TYPED_TEST(MlpTest, KeepsNothingThatIsNotAskedFor) {
  Problem<TypeParam> problem(130, 20, 64, 20);
  problem.run();
  auto alone = unwritten<TypeParam>(problem.y.size());
  mlp_forward(problem.inputs(), static_cast<TypeParam*>(nullptr), alone.data());
  EXPECT_TRUE(same_bits(alone, problem.y));
  auto d_up = unwritten<TypeParam>(problem.up.size());
  mlp_backward(problem.inputs(), problem.h.data(), problem.grad_y.data(),
               {nullptr, d_up.data(), nullptr, nullptr, nullptr});
  EXPECT_TRUE(same_bits(d_up, problem.grads[1]));
}

}  // namespace
}  // namespace hopmix::kernels

#include "hopmix/kernels/maps/linear.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

// y = x W^T + b and its gradients by their definition, in double.
template <typename T>
struct Problem {
  int64_t rows, inputs, outputs = 0;
  std::vector<int64_t> widths;
  bool has_bias;
  std::vector<T> x, weight, bias, d_x, d_weight, d_bias;
  std::vector<std::vector<T>> y, grad_y;
  size_t without = 1000;  // the part that has no gradient

  Problem(int64_t m, int64_t k, std::vector<int64_t> parts, bool biased = true)
      : rows(m), inputs(k), widths(std::move(parts)), has_bias(biased) {
    for (const int64_t width : widths) outputs += width;
    x = random_values<T>(rows * inputs, 1);
    weight = random_values<T>(outputs * inputs, 2);
    bias = random_values<T>(outputs, 3);
    for (size_t p = 0; p < widths.size(); ++p) {
      grad_y.push_back(random_values<T>(rows * widths[p], static_cast<int>(4 + p)));
    }
  }

  LinearInputs<T> in() const { return {x.data(), rows, inputs}; }

  // The gradients that are asked for; each map has its rows of the weights.
  std::vector<LinearMapGradient<T>> gradients(T* weights, T* biases) const {
    std::vector<LinearMapGradient<T>> maps;
    int64_t first = 0;
    for (size_t p = 0; p < widths.size(); ++p) {
      maps.push_back(
          {weight.data() + first * inputs, widths[p], p == without ? nullptr : grad_y[p].data(),
           weights ? weights + first * inputs : nullptr, biases ? biases + first : nullptr});
      first += widths[p];
    }
    return maps;
  }

  void run() {
    y.clear();
    for (const int64_t width : widths) y.push_back(unwritten<T>(rows * width));
    std::vector<LinearMap<T>> maps;
    int64_t first = 0;
    for (size_t p = 0; p < widths.size(); ++p) {
      maps.push_back({weight.data() + first * inputs, has_bias ? bias.data() + first : nullptr,
                      widths[p], y[p].data()});
      first += widths[p];
    }
    d_x = unwritten<T>(rows * inputs);
    d_weight = unwritten<T>(outputs * inputs);
    d_bias = unwritten<T>(outputs);
    linear_forward(in(), maps);
    linear_backward(in(), gradients(d_weight.data(), d_bias.data()), d_x.data());
  }

  std::vector<double> results() const {
    std::vector<double> all;
    const auto take = [&](const std::vector<T>& part) {
      const auto values = widened(part);
      all.insert(all.end(), values.begin(), values.end());
    };
    for (const auto& part : y) take(part);
    for (const auto* part : {&d_x, &d_weight, &d_bias}) take(*part);
    return all;
  }

  void compare_with_definition() const {
    const auto in_x = widened(x), in_w = widened(weight), in_b = widened(bias);
    std::vector<double> e_x(x.size()), e_weight(weight.size()), e_bias(bias.size());
    int64_t first = 0;
    for (size_t p = 0; p < widths.size(); ++p) {
      const auto grad = widened(grad_y[p]);
      std::vector<double> e_y(y[p].size());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t c = 0; c < widths[p]; ++c) {
          const int64_t n = first + c;
          double sum = has_bias ? in_b[n] : 0;
          const double g = p == without ? 0 : grad[i * widths[p] + c];
          for (int64_t k = 0; k < inputs; ++k) {
            sum += in_x[i * inputs + k] * in_w[n * inputs + k];
            e_x[i * inputs + k] += g * in_w[n * inputs + k];
            e_weight[n * inputs + k] += g * in_x[i * inputs + k];
          }
          e_bias[n] += g;
          e_y[i * widths[p] + c] = sum;
        }
      }
      expect_close(y[p], e_y, "y");
      first += widths[p];
    }
    expect_close(d_x, e_x, "d x");
    expect_close(d_weight, e_weight, "d weight");
    expect_close(d_bias, e_bias, "d bias");
  }
};

template <typename T>
class LinearTest : public ::testing::Test {};
TYPED_TEST_SUITE(LinearTest, StorageTypes);

// Rows around the limits between dot products, W x^T and panels, and between chunks of the
// gradient; widths with every kind of tail; several parts; a part without a gradient.
TYPED_TEST(LinearTest, MatchesTheDefinition) {
  const std::vector<Problem<TypeParam>> problems = {
      {0, 20, {16}},       {1, 3, {20}},    {2, 64, {64, 100}, false}, {3, 100, {3, 1, 70}},
      {4, 129, {8}},       {5, 20, {64}},   {63, 65, {100}, false},    {96, 64, {20, 20}},
      {97, 20, {3, 64}},   {100, 3, {130}}, {511, 64, {64}, false},    {513, 20, {20, 0, 3}},
      {1000, 100, {7, 64}}};
  for (Problem<TypeParam> problem : problems) {
    SCOPED_TRACE(std::to_string(problem.rows) + " x " + std::to_string(problem.inputs) + " to " +
                 ::testing::PrintToString(problem.widths));
    problem.run();
    problem.compare_with_definition();
  }
}

TYPED_TEST(LinearTest, APartWithoutAGradientAddsNothing) {
  for (const size_t without : {0, 1}) {
    Problem<TypeParam> problem(130, 20, {20, 64});
    problem.without = without;
    problem.run();
    problem.compare_with_definition();
  }
  Problem<TypeParam> none(130, 20, {64});
  none.without = 0;
  none.run();
  none.compare_with_definition();
}

TYPED_TEST(LinearTest, EveryInstructionSet) {
  for_each_target([] {
    for (const int64_t rows : {1, 2, 3, 4, 7, 40, 200}) {
      for (const int64_t inputs : {3, 17, 64}) {
        Problem<TypeParam> problem(rows, inputs, {33, 4});
        problem.run();
        problem.compare_with_definition();
      }
    }
  });
}

TYPED_TEST(LinearTest, SameBitsForAnyThreads) {
  for (const int64_t rows : {4, 90, 1100}) {
    Problem<TypeParam> problem(rows, 100, {200, 64});
    expect_same_for_any_threads([&] {
      problem.run();
      return problem.results();
    });
  }
}

// Where a row lies among many changes none of its bits.
TYPED_TEST(LinearTest, ARowDoesNotDependOnTheRowsAroundIt) {
  Problem<TypeParam> all(300, 70, {50});
  all.run();
  for (const int64_t first : {1, 95, 150}) {
    Problem<TypeParam> some(100, 70, {50});
    some.x.assign(all.x.begin() + first * 70, all.x.begin() + (first + 100) * 70);
    some.run();
    EXPECT_TRUE(
        same_bits(some.y[0], std::vector<TypeParam>(all.y[0].begin() + first * 50,
                                                    all.y[0].begin() + (first + 100) * 50)));
  }
}

TYPED_TEST(LinearTest, GivesOnlyTheGradientsAskedFor) {
  Problem<TypeParam> problem(130, 20, {64});
  problem.run();
  const auto d_x = problem.d_x, d_weight = problem.d_weight, d_bias = problem.d_bias;
  auto alone = unwritten<TypeParam>(d_bias.size());
  linear_backward<TypeParam>(problem.in(), problem.gradients(nullptr, alone.data()), nullptr);
  EXPECT_TRUE(same_bits(alone, d_bias));
  auto weight = unwritten<TypeParam>(d_weight.size());
  linear_backward<TypeParam>(problem.in(), problem.gradients(weight.data(), nullptr), nullptr);
  EXPECT_TRUE(same_bits(weight, d_weight));
}

}  // namespace
}  // namespace hopmix::kernels

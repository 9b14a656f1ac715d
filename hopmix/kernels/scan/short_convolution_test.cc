#include "hopmix/kernels/scan/short_convolution.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

struct Shape {
  int64_t batch, time, width, taps = 4;
  bool bias = true, silu = true;
  std::vector<int64_t> bounds = {};
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B" << s.batch << " T" << s.time << " E" << s.width << " W" << s.taps
             << (s.bias ? " bias" : "") << (s.silu ? " silu" : "")
             << (s.bounds.empty() ? "" : " packed");
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int64_t time : {0, 1, 2, 63, 65, 256, 257, 600}) {
    for (const int64_t width : {1, 20, 64, 100}) all.push_back({2, time, width});
  }
  for (const int64_t taps : {1, 2, 3, 5, 32}) {
    for (const bool silu : {false, true}) {
      for (const int64_t width : {20, 80})
        all.push_back({2, 300, width, taps, taps % 2 == 0, silu});
    }
  }
  all.push_back({1, 70, 20, 4, true, true, {0, 0, 1, 34, 34, 69, 70, 70}});
  all.push_back({1, 600, 48, 3, false, true, {0, 2, 290, 600}});
  all.push_back({0, 5, 3});
  return all;
}

template <typename T>
struct Problem {
  Shape shape;
  Sequences sequences;
  std::vector<T> x, weight, bias, grad_y, y, d_x, d_weight, d_bias;

  explicit Problem(const Shape& s)
      : shape(s),
        sequences(s.bounds.empty() ? Sequences::batched(s.batch, s.time)
                                   : Sequences::packed(s.bounds)) {
    x = random_values<T>(s.batch * s.time * s.width, 1, -2, 2);
    weight = random_values<T>(s.width * s.taps, 2);
    bias = random_values<T>(s.width, 3);
    grad_y = random_values<T>(x.size(), 4);
  }

  ShortConvolutionInputs<T> inputs() const {
    return {x.data(),   weight.data(), shape.bias ? bias.data() : nullptr, shape.width, shape.taps,
            shape.silu, sequences};
  }

  void run() {
    y = unwritten<T>(x.size());
    d_x = unwritten<T>(x.size());
    d_weight = unwritten<T>(weight.size());
    d_bias = unwritten<T>(bias.size());
    short_convolution(inputs(), y.data());
    short_convolution_backward<T>(inputs(), grad_y.data(),
                                  {d_x.data(), d_weight.data(), d_bias.data()});
  }

  std::vector<double> results() const {
    std::vector<double> all;
    for (const auto* part : {&y, &d_x, &d_weight, &d_bias}) {
      const auto values = widened(*part);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  // By the definition.
  void compare_with_reference() const {
    const auto in_x = widened(x), in_w = widened(weight), in_b = widened(bias),
               in_g = widened(grad_y);
    std::vector<double> e_y(y.size()), e_x(x.size()), e_weight(weight.size()), e_bias(bias.size());
    for (const Sequence& s : sequences.list) {
      for (int64_t t = 0; t < s.length; ++t) {
        for (int64_t c = 0; c < shape.width; ++c) {
          const auto at = [&](int64_t i) {
            return (s.batch * shape.time + s.start + i) * shape.width + c;
          };
          const auto tap = [&](int64_t j) { return c * shape.taps + shape.taps - 1 - j; };
          double sum = shape.bias ? in_b[c] : 0;
          for (int64_t j = 0; j < shape.taps && j <= t; ++j) sum += in_w[tap(j)] * in_x[at(t - j)];
          const double gate = 1 / (1 + std::exp(-sum));
          e_y[at(t)] = shape.silu ? sum * gate : sum;
          const double d_sum = in_g[at(t)] * (shape.silu ? gate + sum * gate * (1 - gate) : 1);
          e_bias[c] += d_sum;
          for (int64_t j = 0; j < shape.taps && j <= t; ++j) {
            e_weight[tap(j)] += d_sum * in_x[at(t - j)];
            e_x[at(t - j)] += d_sum * in_w[tap(j)];
          }
        }
      }
    }
    expect_close(y, e_y, "y");
    expect_close(d_x, e_x, "d x");
    expect_close(d_weight, e_weight, "d weight");
    expect_close(d_bias, e_bias, "d bias");
  }
};

template <typename T>
class ShortConvolutionTest : public ::testing::Test {};
TYPED_TEST_SUITE(ShortConvolutionTest, StorageTypes);

TYPED_TEST(ShortConvolutionTest, MatchesTheReference) {
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(::testing::PrintToString(s));
    Problem<TypeParam> problem(s);
    problem.run();
    problem.compare_with_reference();
  }
}

TYPED_TEST(ShortConvolutionTest, EveryInstructionSetMatchesTheReference) {
  for_each_target([] {
    for (const int64_t width : {1, 15, 16, 17, 48, 100}) {
      for (const int64_t taps : {3, 4, 7}) {
        Problem<TypeParam> problem({2, 30, width, taps});
        problem.run();
        problem.compare_with_reference();
      }
    }
  });
}

TYPED_TEST(ShortConvolutionTest, SameBitsForAnyNumberOfThreads) {
  expect_same_for_any_threads([] {
    Problem<TypeParam> problem({2, 600, 130});
    problem.run();
    return problem.results();
  });
}

TYPED_TEST(ShortConvolutionTest, LaterTokensAreNotSeen) {
  for (const int64_t cut : {1, 40, 299}) {
    Problem<TypeParam> plain({1, 300, 3}), changed({1, 300, 3});
    std::fill(changed.x.begin() + cut * 3, changed.x.end(), static_cast<TypeParam>(1e30f));
    plain.run();
    changed.run();
    plain.y.resize(cut * 3);
    changed.y.resize(cut * 3);
    EXPECT_TRUE(same_bits(plain.y, changed.y));
  }
}

TYPED_TEST(ShortConvolutionTest, GradientsAreWrittenAlone) {
  Problem<TypeParam> p({2, 300, 20});
  p.run();
  auto d_x = unwritten<TypeParam>(p.x.size()), d_weight = unwritten<TypeParam>(p.weight.size()),
       d_bias = unwritten<TypeParam>(p.bias.size());
  const auto write = [&](TypeParam* dx, TypeParam* dweight, TypeParam* dbias) {
    short_convolution_backward<TypeParam>(p.inputs(), p.grad_y.data(), {dx, dweight, dbias});
  };
  write(d_x.data(), nullptr, nullptr);
  write(nullptr, d_weight.data(), nullptr);
  write(nullptr, nullptr, d_bias.data());
  EXPECT_TRUE(same_bits(d_x, p.d_x));
  EXPECT_TRUE(same_bits(d_weight, p.d_weight));
  EXPECT_TRUE(same_bits(d_bias, p.d_bias));
}

// Where the exponential of SiLU over- or underflows.
TEST(ShortConvolution, SiluOfLargeInputs) {
  Problem<float> p({1, 6, 1, 1, false, true});
  p.weight = {1};
  p.x = {-1e30f, -120, -90, 90, 120, 1e30f};
  p.run();
  for (int t = 0; t < 3; ++t) {
    EXPECT_NEAR(p.y[t], 0, 1e-30);
    EXPECT_NEAR(p.d_x[t], 0, 1e-30);
    EXPECT_EQ(p.y[3 + t], p.x[3 + t]);
    EXPECT_EQ(p.d_x[3 + t], p.grad_y[3 + t]);
  }
}

TEST(ShortConvolution, GradientsMatchFiniteDifferences) {
  for (const Shape& s : {Shape{2, 7, 3}, Shape{1, 7, 2, 3, true, true, {0, 3, 3, 7}}}) {
    Problem<double> p(s);
    p.run();
    const auto loss = [&] {
      short_convolution(p.inputs(), p.y.data());
      return inner_product(p.y, p.grad_y);
    };
    expect_gradient(p.d_x, finite_differences(p.x, loss), "x");
    expect_gradient(p.d_weight, finite_differences(p.weight, loss), "weight");
    expect_gradient(p.d_bias, finite_differences(p.bias, loss), "bias");
  }
}

}  // namespace
}  // namespace hopmix::kernels

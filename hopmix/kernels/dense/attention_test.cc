#include "hopmix/kernels/dense/attention.h"

#include <gtest/gtest.h>

#include <numeric>

#include "hopmix/kernels/dense/dense_checks.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

template <typename T>
struct Attention {
  using Value = T;
  using A = Accumulator<T>;
  using P = DenseProblem<Attention>;
  static constexpr int kNumbers = 0;
  static constexpr bool kSelf = true;

  static AttentionInputs<T> inputs(const P& p) {
    return {p.q.data(),        p.k.data(),          p.v.data(), p.sizes.heads, p.sizes.kv_heads,
            p.sizes.key_width, p.sizes.value_width, p.scale,    p.sequences};
  }
  static void forward(const P& p, T* y, A* mix, A* lse) { attention<T>(inputs(p), y, {mix, lse}); }
  static void backward(const P& p, const A* mix, const A* lse, const DensePointers<T>& out) {
    attention_backward<T>(inputs(p), p.grad_y.data(), {mix, lse}, {out.q, out.k, out.v});
  }
  static reference::DenseResults reference(const Matrix& q, const Matrix& k, const Matrix& v,
                                           const std::vector<Matrix>&, const Matrix& g,
                                           double scale, int64_t) {
    return reference::attention(q, k, v, g, scale);
  }
};
using Types = ::testing::Types<Attention<float>, Attention<double>, Attention<Bfloat16>>;
INSTANTIATE_TYPED_TEST_SUITE_P(OfAttention, DenseKernel, Types);

// Scores that a negative scale turns around, or all the same.
TEST(Attention, AnyScale) {
  for (const double scale : {0.7, 0.0, -0.4}) {
    DenseProblem<Attention<double>> p({"", 150, 20, 12, 1, 2, 1});
    p.scale = scale;
    p.run();
    p.compare_with_reference();
  }
}

// A value that is infinite reaches its readers in the strip on the diagonal, in its column alone.
TEST(Attention, InfinityStaysInItsColumn) {
  const Case c = {"", 100, 5, 20, 1, 1, 1};
  DenseProblem<Attention<float>> plain(c), changed(c);
  changed.v[37 * 20 + 4] = std::numeric_limits<float>::infinity();
  plain.forward();
  changed.forward();
  for (int64_t i = 0; i < 100; ++i) {
    for (int64_t x = 0; x < 20; ++x) {
      const float before = plain.y[i * 20 + x], after = changed.y[i * 20 + x];
      if (x == 4 && i >= 37) {
        ASSERT_EQ(after, std::numeric_limits<float>::infinity()) << i;
      } else {
        ASSERT_EQ(after, before) << i << " " << x;
      }
    }
  }
}

// The selection changes no output, and is what a stable sort gives.
TEST(Attention, SelectsTheBest) {
  for (const bool self : {true, false}) {
    const Case c = {"", 300, 5, 3, 1, 2, 1};
    DenseProblem<Attention<double>> p(c);
    for (auto* x : {&p.q, &p.k}) {
      for (double& e : *x) e = std::round(e);  // many equal scores
    }
    p.forward();
    const int64_t kappa = 7;
    std::vector<double> y = unwritten<double>(p.y.size());
    std::vector<int32_t> indices(300 * 2 * kappa, -2);
    attention<double>(Attention<double>::inputs(p), y.data(), {}, {kappa, 1, self, indices.data()});
    EXPECT_TRUE(same_bits(y, p.y));
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 300; ++i) {
        std::vector<int32_t> order(i + (self ? 1 : 0));
        std::iota(order.begin(), order.end(), 0);
        const auto score = [&](int64_t j) {
          double sum = 0;
          for (int64_t x = 0; x < 5; ++x) sum += p.q[(i * 2 + h) * 5 + x] * p.k[j * 5 + x];
          return sum;
        };
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return score(a) > score(b); });
        order.resize(kappa, -1);
        for (int64_t x = 0; x < kappa; ++x) {
          ASSERT_EQ(indices[(i * 2 + h) * kappa + x], order[x]) << i << " " << h << " " << x;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hopmix::kernels

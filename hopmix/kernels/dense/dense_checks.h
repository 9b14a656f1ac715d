// Checks for every dense kernel, used by their tests. A Kernel<T> has
//   Value, kNumbers (per token and head, besides q, k and v), kSelf (whether a token reads itself)
//   forward(problem, y, mix, lse), backward(problem, mix, lse, gradients)
//   reference(q, k, v, numbers, grad_y, scale)  one head, dense, in double
// and is instantiated with INSTANTIATE_TYPED_TEST_SUITE_P.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "hopmix/kernels/base/reference.h"
#include "hopmix/kernels/base/test_data.h"
#include "hopmix/kernels/dense/dense_reference.h"

namespace hopmix::kernels::testing {

/// Output gradients; null skips one.
template <typename T>
struct DensePointers {
  T *q = nullptr, *k = nullptr, *v = nullptr;
  T* numbers[3] = {};
};

template <typename Kernel>
struct DenseProblem {
  using T = typename Kernel::Value;
  using A = Accumulator<T>;

  Case sizes;
  Sequences sequences;
  double scale;
  int64_t block = 0;
  std::vector<T> q, k, v, grad_y, y, d_q, d_k, d_v;
  std::vector<T> numbers[3], d_numbers[3];
  std::vector<A> mix, lse;

  explicit DenseProblem(const Case& c)
      : sizes(c), sequences(c.sequences()), scale(1 / std::sqrt(c.key_width + 0.0)) {
    const int64_t tokens = c.batch * c.time;
    q = random_values<T>(tokens * c.heads * c.key_width, 1, -2, 2);
    k = random_values<T>(tokens * c.kv_heads * c.key_width, 2, -2, 2);
    v = random_values<T>(tokens * c.kv_heads * c.value_width, 3);
    grad_y = random_values<T>(tokens * c.heads * c.value_width, 4);
    for (int i = 0; i < Kernel::kNumbers; ++i) {
      numbers[i] = random_values<T>(tokens * c.heads, 5 + i, -0.7, 0.7);
    }
  }
  DenseProblem(const DenseProblem&) = delete;

  void forward() {
    y = unwritten<T>(grad_y.size());
    mix = unwritten<A>(grad_y.size());
    lse = unwritten<A>(sizes.batch * sizes.time * sizes.heads);
    Kernel::forward(*this, y.data(), mix.data(), lse.data());
  }

  void run() {
    forward();
    d_q = unwritten<T>(q.size());
    d_k = unwritten<T>(k.size());
    d_v = unwritten<T>(v.size());
    DensePointers<T> out = {d_q.data(), d_k.data(), d_v.data(), {}};
    for (int i = 0; i < Kernel::kNumbers; ++i) {
      d_numbers[i] = unwritten<T>(numbers[i].size());
      out.numbers[i] = d_numbers[i].data();
    }
    Kernel::backward(*this, mix.data(), lse.data(), out);
  }

  std::vector<T> results() const {
    std::vector<T> all;
    for (const auto* x : {&y, &d_q, &d_k, &d_v, &d_numbers[0], &d_numbers[1], &d_numbers[2]}) {
      all.insert(all.end(), x->begin(), x->end());
    }
    return all;
  }

  void compare_with_reference() const {
    const Case& c = sizes;
    const auto wide_q = widened(q), wide_k = widened(k), wide_v = widened(v),
               wide_g = widened(grad_y);
    std::vector<double> e_y(y.size()), e_q(q.size()), e_k(k.size()), e_v(v.size());
    std::vector<double> e_numbers[3];
    for (int i = 0; i < Kernel::kNumbers; ++i) e_numbers[i].resize(numbers[i].size());
    for (const Sequence& s : sequences.list) {
      for (int64_t h = 0; h < c.heads && s.length > 0; ++h) {
        const int64_t g = h / (c.heads / c.kv_heads);
        std::vector<Matrix> own;
        for (int i = 0; i < Kernel::kNumbers; ++i) {
          own.push_back(slice(widened(numbers[i]), sequences, s, c.heads, h, 1));
        }
        const reference::DenseResults one =
            Kernel::reference(slice(wide_q, sequences, s, c.heads, h, c.key_width),
                              slice(wide_k, sequences, s, c.kv_heads, g, c.key_width),
                              slice(wide_v, sequences, s, c.kv_heads, g, c.value_width), own,
                              slice(wide_g, sequences, s, c.heads, h, c.value_width), scale, block);
        unslice(one.y, sequences, s, c.heads, h, e_y);
        unslice(one.q, sequences, s, c.heads, h, e_q);
        unslice(one.k, sequences, s, c.kv_heads, g, e_k);
        unslice(one.v, sequences, s, c.kv_heads, g, e_v);
        for (int i = 0; i < Kernel::kNumbers; ++i) {
          unslice(one.numbers[i], sequences, s, c.heads, h, e_numbers[i]);
        }
      }
    }
    expect_near(y, e_y, "y");
    expect_near(d_q, e_q, "dq");
    expect_near(d_k, e_k, "dk");
    expect_near(d_v, e_v, "dv");
    for (int i = 0; i < Kernel::kNumbers; ++i) expect_near(d_numbers[i], e_numbers[i], "numbers");
  }

  /// Tolerance: sixteen roundings of sums relative to the largest value, multiplied by chains of
  /// reads (W by up to 1 / (1 - gamma), and its gradient again, about 10 at gamma = 0.7), plus the
  /// rounding of the result. NaN fails.
  static void expect_near(const std::vector<T>& actual, const std::vector<double>& expected,
                          const std::string& what) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    double largest = 1;
    for (const double x : expected) largest = std::max(largest, std::abs(x));
    const double sums = 160 * std::numeric_limits<A>::epsilon() * largest;
    const double unit = kRoundsOutput<T> ? std::ldexp(1, -8) : 0;
    const std::vector<double> values = widened(actual);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(std::abs(values[i] - expected[i]) <= sums + unit * std::abs(expected[i]))
          << what << " entry " << i << ": " << values[i] << " instead of " << expected[i];
    }
  }
};

template <typename Kernel>
void expect_dense_reference(const Case& c, int64_t block = 0) {
  SCOPED_TRACE(::testing::PrintToString(c));
  DenseProblem<Kernel> problem(c);
  problem.block = block;
  problem.run();
  problem.compare_with_reference();
}

template <typename Kernel>
class DenseKernel : public ::testing::Test {};
TYPED_TEST_SUITE_P(DenseKernel);

TYPED_TEST_P(DenseKernel, MatchesTheDefinition) {
  for (const Case& c :
       {Case{"", 0, 3, 3, 2, 2, 1}, Case{"", 1, 3, 4, 2, 2, 1}, Case{"", 2, 20, 21, 2, 4, 2},
        Case{"", 63, 20, 16, 1, 2, 1}, Case{"", 64, 64, 64, 1, 1, 1}, Case{"", 65, 100, 3, 2, 3, 3},
        Case{"", 100, 20, 12, 2, 6, 2}, Case{"", 129, 3, 100, 1, 2, 2},
        Case{"", 300, 20, 33, 1, 2, 1}, Case{"", 1000, 20, 3, 1, 1, 1}}) {
    expect_dense_reference<TypeParam>(c);
  }
}

TYPED_TEST_P(DenseKernel, PackedSequences) {
  expect_dense_reference<TypeParam>({"", 70, 5, 7, 1, 6, 2, {0, 0, 1, 34, 34, 69, 70, 70}});
  expect_dense_reference<TypeParam>({"", 300, 16, 20, 1, 2, 1, {0, 130, 131, 300}});
  expect_dense_reference<TypeParam>({"", 0, 3, 3, 1, 2, 1, {0, 0, 0}});
}

TYPED_TEST_P(DenseKernel, EveryInstructionSet) {
  for_each_target([] {
    for (const int64_t width : {1, 3, 16, 17, 33, 64}) {
      expect_dense_reference<TypeParam>({"", 70, width, width + 1, 1, 2, 1});
    }
    expect_dense_reference<TypeParam>({"", 150, 20, 20, 1, 1, 1});
  });
}

TYPED_TEST_P(DenseKernel, SameBitsForAnyThreads) {
  for (const Case& c : {Case{"", 300, 20, 24, 2, 6, 2}, Case{"", 1400, 100, 20, 1, 1, 1},
                        Case{"", 300, 16, 20, 1, 2, 1, {0, 130, 131, 300}}}) {
    expect_same_for_any_threads([&] {
      DenseProblem<TypeParam> problem(c);
      problem.run();
      return problem.results();
    });
  }
}

TYPED_TEST_P(DenseKernel, GradientsOneByOne) {
  using T = typename TypeParam::Value;
  DenseProblem<TypeParam> p({"", 150, 20, 12, 1, 4, 2});
  p.run();
  std::vector<T> only_q = unwritten<T>(p.q.size()), only_k = unwritten<T>(p.k.size());
  std::vector<T> only_v = unwritten<T>(p.v.size());
  const auto run = [&](const DensePointers<T>& out) {
    TypeParam::backward(p, p.mix.data(), p.lse.data(), out);
  };
  run({only_q.data(), nullptr, nullptr, {}});
  run({nullptr, only_k.data(), nullptr, {}});
  run({nullptr, nullptr, only_v.data(), {}});
  EXPECT_TRUE(same_bits(only_q, p.d_q));
  EXPECT_TRUE(same_bits(only_k, p.d_k));
  EXPECT_TRUE(same_bits(only_v, p.d_v));
}

TYPED_TEST_P(DenseKernel, FiniteDifferences) {
  if constexpr (std::is_same_v<typename TypeParam::Value, double>) {
    DenseProblem<TypeParam> p({"", 19, 3, 2, 1, 2, 1, {0, 4, 4, 19}});
    p.run();
    const auto loss = [&] {
      p.forward();
      return inner_product(p.y, p.grad_y);
    };
    expect_gradient(p.d_q, finite_differences(p.q, loss), "dq");
    expect_gradient(p.d_k, finite_differences(p.k, loss), "dk");
    expect_gradient(p.d_v, finite_differences(p.v, loss), "dv");
    for (int i = 0; i < TypeParam::kNumbers; ++i) {
      expect_gradient(p.d_numbers[i], finite_differences(p.numbers[i], loss), "numbers");
    }
  }
}

// NaN shows in the first token that reads it, and not before.
TYPED_TEST_P(DenseKernel, NanShowsWhereItIsRead) {
  using T = typename TypeParam::Value;
  const Case c = {"", 300, 20, 5, 1, 1, 1};
  DenseProblem<TypeParam> plain(c);
  plain.forward();
  const auto expect_nan = [&](std::vector<T> DenseProblem<TypeParam>::*input, int64_t width,
                              int64_t at, int64_t first) {
    DenseProblem<TypeParam> p(c);
    const auto row = (p.*input).begin() + at * width;
    std::fill(row, row + width, static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
    p.forward();
    const std::vector<double> before = widened(plain.y), after = widened(p.y);
    for (int64_t x = 0; x < first * c.value_width; ++x) ASSERT_EQ(after[x], before[x]) << at;
    for (int64_t x = first * c.value_width; x < (first + 1) * c.value_width; ++x) {
      ASSERT_TRUE(std::isnan(after[x])) << at << ": " << after[x];
    }
  };
  using P = DenseProblem<TypeParam>;
  for (const int64_t at : {1, 17, 131}) {
    expect_nan(&P::q, c.key_width, at, at);
    expect_nan(&P::k, c.key_width, at, TypeParam::kSelf ? at : at + 1);
    expect_nan(&P::v, c.value_width, at, at);
  }
}

REGISTER_TYPED_TEST_SUITE_P(DenseKernel, MatchesTheDefinition, PackedSequences, EveryInstructionSet,
                            SameBitsForAnyThreads, GradientsOneByOne, FiniteDifferences,
                            NanShowsWhereItIsRead);

}  // namespace hopmix::kernels::testing

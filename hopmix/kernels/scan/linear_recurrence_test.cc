#include "hopmix/kernels/scan/linear_recurrence.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

struct Shape {
  int64_t batch, time, width;
  std::vector<int64_t> bounds = {};
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int64_t time : {0, 1, 2, 63, 64, 65, 100, 1000}) {
    for (const int64_t width : {1, 3, 20, 64, 100, 130}) all.push_back({2, time, width});
  }
  all.push_back({1, 70, 20, {0, 0, 1, 34, 34, 69, 70, 70}});
  all.push_back({0, 5, 3});
  return all;
}

template <typename T>
struct Problem {
  using A = Accumulator<T>;
  Shape shape;
  Sequences sequences;
  bool with_initial;
  std::vector<T> a, x, grad_y, y, d_a, d_x;
  std::vector<A> initial, grad_state, state, d_initial;

  Problem(const Shape& s, bool initial_state)
      : shape(s),
        sequences(s.bounds.empty() ? Sequences::batched(s.batch, s.time)
                                   : Sequences::packed(s.bounds)),
        with_initial(initial_state) {
    const int64_t entries = s.batch * s.time * s.width, states = sequences.count() * s.width;
    a = random_values<T>(entries, 1, -1, 1);
    x = random_values<T>(entries, 2);
    grad_y = random_values<T>(entries, 3);
    initial = random_values<A>(states, 4);
    grad_state = random_values<A>(states, 5);
  }

  LinearRecurrenceInputs<T> inputs() const {
    return {a.data(), x.data(), with_initial ? initial.data() : nullptr, shape.width, sequences};
  }

  void backward(bool from_y = true, bool from_state = true) {
    d_a = unwritten<T>(a.size());
    d_x = unwritten<T>(x.size());
    d_initial = unwritten<A>(initial.size());
    linear_recurrence_backward<T>(inputs(), y.data(), from_y ? grad_y.data() : nullptr,
                                  from_state ? grad_state.data() : nullptr,
                                  {d_a.data(), d_x.data(), d_initial.data()});
  }

  void run() {
    y = unwritten<T>(x.size());
    state = unwritten<A>(initial.size());
    linear_recurrence(inputs(), y.data(), state.data());
    backward();
  }

  std::vector<double> results() const {
    std::vector<double> all;
    for (const auto* part : {&y, &d_a, &d_x}) {
      const auto values = widened(*part);
      all.insert(all.end(), values.begin(), values.end());
    }
    all.insert(all.end(), state.begin(), state.end());
    all.insert(all.end(), d_initial.begin(), d_initial.end());
    return all;
  }

  // By the definition, one channel at a time: y_t = a_t y_{t-1} + x_t and
  // dLoss/dy_t = grad_t + a_{t+1} dLoss/dy_{t+1}, where the last token also gets the state's.
  void compare_with_reference() const {
    const auto in_a = widened(a), in_x = widened(x), in_g = widened(grad_y);
    std::vector<double> e_y(y.size()), e_state(state.size()), e_a(a.size()), e_x(x.size()),
        e_initial(initial.size());
    for (int64_t n = 0; n < sequences.count(); ++n) {
      const Sequence& s = sequences.list[n];
      for (int64_t c = 0; c < shape.width; ++c) {
        const auto at = [&](int64_t t) {
          return (s.batch * shape.time + s.start + t) * shape.width + c;
        };
        const int64_t here = n * shape.width + c;
        const double first = with_initial ? initial[here] : 0;
        for (int64_t t = 0; t < s.length; ++t) {
          e_y[at(t)] = in_a[at(t)] * (t == 0 ? first : e_y[at(t - 1)]) + in_x[at(t)];
        }
        e_state[here] = s.length == 0 ? first : e_y[at(s.length - 1)];
        double g = grad_state[here];
        for (int64_t t = s.length - 1; t >= 0; --t) {
          g += in_g[at(t)];
          e_x[at(t)] = g;
          e_a[at(t)] = g * (t == 0 ? first : e_y[at(t - 1)]);
          g *= in_a[at(t)];
        }
        e_initial[here] = g;
      }
    }
    expect_close(y, e_y, "y");
    expect_close(state, e_state, "state");
    expect_close(d_a, e_a, "d a");
    expect_close(d_x, e_x, "d x");
    expect_close(d_initial, e_initial, "d initial_state");
  }
};

template <typename T>
class LinearRecurrenceTest : public ::testing::Test {};
TYPED_TEST_SUITE(LinearRecurrenceTest, StorageTypes);

TYPED_TEST(LinearRecurrenceTest, MatchesTheReference) {
  for (const Shape& s : shapes()) {
    for (const bool initial : {false, true}) {
      SCOPED_TRACE("B" + std::to_string(s.batch) + " T" + std::to_string(s.time) + " E" +
                   std::to_string(s.width) + (initial ? " initial" : ""));
      Problem<TypeParam> problem(s, initial);
      problem.run();
      problem.compare_with_reference();
    }
  }
}

TYPED_TEST(LinearRecurrenceTest, EveryInstructionSetMatchesTheReference) {
  for_each_target([] {
    for (const int64_t width : {1, 3, 15, 16, 17, 63, 64, 65, 100}) {
      Problem<TypeParam> problem({2, 30, width}, true);
      problem.run();
      problem.compare_with_reference();
    }
  });
}

TYPED_TEST(LinearRecurrenceTest, SameBitsForAnyNumberOfThreads) {
  expect_same_for_any_threads([] {
    Problem<TypeParam> problem({2, 100, 130}, true);
    problem.run();
    return problem.results();
  });
  expect_same_for_any_threads([] {
    Problem<TypeParam> problem({1, 300, 37}, true);
    problem.run();
    return problem.results();
  });
}

TYPED_TEST(LinearRecurrenceTest, LaterTokensAreNotSeen) {
  Problem<TypeParam> plain({1, 65, 3}, true), changed({1, 65, 3}, true);
  std::fill(changed.a.begin() + 120, changed.a.end(), static_cast<TypeParam>(1e30f));
  std::fill(changed.x.begin() + 120, changed.x.end(), static_cast<TypeParam>(1e30f));
  plain.run();
  changed.run();
  plain.y.resize(120);
  changed.y.resize(120);
  EXPECT_TRUE(same_bits(plain.y, changed.y));
}

TYPED_TEST(LinearRecurrenceTest, GradientsThroughOneOutputAddUp) {
  Problem<TypeParam> both({1, 20, 3}, true), one({1, 20, 3}, true), other({1, 20, 3}, true);
  both.run();
  one.run();
  other.run();
  one.backward(true, false);
  other.backward(false, true);
  std::vector<double> sum;
  for (size_t i = 0; i < both.d_initial.size(); ++i) {
    sum.push_back(static_cast<double>(one.d_initial[i]) + other.d_initial[i]);
    EXPECT_NE(other.d_initial[i], 0);
  }
  expect_close(both.d_initial, sum, "d initial_state");
}

// A decay of 0, of 10^-12 and of nearly 0 at one place: no exp(-cumsum) to overflow.
TEST(LinearRecurrence, VanishingDecaysStayExact) {
  Problem<float> problem({1, 64, 3}, true);
  for (auto& a : problem.a) a = 1e-12f;
  problem.a[30 * 3] = 0;
  problem.a[31 * 3 + 1] = std::exp(-50.0f);
  problem.run();
  problem.compare_with_reference();
}

TEST(LinearRecurrence, GradientsMatchFiniteDifferences) {
  for (const Shape& s : {Shape{2, 7, 3}, Shape{1, 7, 2, {0, 3, 3, 7}}}) {
    Problem<double> p(s, true);
    p.run();
    const auto loss = [&] {
      linear_recurrence(p.inputs(), p.y.data(), p.state.data());
      return inner_product(p.y, p.grad_y) + inner_product(p.state, p.grad_state);
    };
    expect_gradient(p.d_a, finite_differences(p.a, loss), "a");
    expect_gradient(p.d_x, finite_differences(p.x, loss), "x");
    expect_gradient(p.d_initial, finite_differences(p.initial, loss), "initial_state");
  }
}

}  // namespace
}  // namespace hopmix::kernels

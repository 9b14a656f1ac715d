#include "hopmix/kernels/scan/selective_scan.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

struct Shape {
  int64_t batch, time, width, states = 4;
  bool initial = true, skip = true;  // an initial state; D
  std::vector<int64_t> bounds = {};
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B" << s.batch << " T" << s.time << " E" << s.width << " N" << s.states
             << (s.initial ? " initial" : "") << (s.skip ? " D" : "")
             << (s.bounds.empty() ? "" : " packed");
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int64_t time : {0, 1, 2, 63, 64, 65, 100, 300}) {
    for (const int64_t width : {3, 20, 64}) all.push_back({2, time, width});
  }
  for (const int64_t states : {1, 2, 3, 16}) {
    for (const bool given : {false, true}) all.push_back({1, 150, 33, states, given, !given});
  }
  all.push_back({1, 1000, 5, 3});
  all.push_back({1, 200, 20, 3, true, true, {0, 0, 1, 64, 64, 129, 199, 200, 200}});
  all.push_back({0, 5, 3});
  return all;
}

template <typename T>
struct Problem {
  using A = Accumulator<T>;
  Shape shape;
  Sequences sequences;
  std::vector<T> u, delta, b, c, grad_y, y, d_u, d_delta, d_b, d_c;
  std::vector<A> a, d, initial, grad_state, state, checkpoints, d_a, d_d, d_initial;

  explicit Problem(const Shape& s)
      : shape(s),
        sequences(s.bounds.empty() ? Sequences::batched(s.batch, s.time)
                                   : Sequences::packed(s.bounds)) {
    const int64_t tokens = s.batch * s.time, states = sequences.count() * s.width * s.states;
    u = random_values<T>(tokens * s.width, 1);
    delta = random_values<T>(tokens * s.width, 2, 0.001, 1);
    a = random_values<A>(s.width * s.states, 3, -3, -0.05);
    b = random_values<T>(tokens * s.states, 4);
    c = random_values<T>(tokens * s.states, 5);
    d = random_values<A>(s.width, 6);
    initial = random_values<A>(states, 7);
    grad_y = random_values<T>(u.size(), 8);
    grad_state = random_values<A>(states, 9);
  }

  SelectiveScanInputs<T> inputs() const {
    return {u.data(),
            delta.data(),
            a.data(),
            b.data(),
            c.data(),
            shape.skip ? d.data() : nullptr,
            shape.initial ? initial.data() : nullptr,
            shape.width,
            shape.states,
            sequences};
  }

  void backward(bool from_y = true, bool from_state = true) {
    d_u = unwritten<T>(u.size());
    d_delta = unwritten<T>(delta.size());
    d_a = unwritten<A>(a.size());
    d_b = unwritten<T>(b.size());
    d_c = unwritten<T>(c.size());
    d_d = unwritten<A>(d.size());
    d_initial = unwritten<A>(initial.size());
    selective_scan_backward<T>(inputs(), checkpoints.data(), from_y ? grad_y.data() : nullptr,
                               from_state ? grad_state.data() : nullptr,
                               {d_u.data(), d_delta.data(), d_a.data(), d_b.data(), d_c.data(),
                                d_d.data(), d_initial.data()});
  }

  void forward() {
    y = unwritten<T>(u.size());
    state = unwritten<A>(initial.size());
    const int64_t rows = scan_checkpoint_rows(sequences.tokens(), sequences.count());
    checkpoints = unwritten<A>(rows * shape.states * padded(shape.width));
    selective_scan(inputs(), y.data(), state.data(), checkpoints.data());
  }

  void run() {
    forward();
    backward();
  }

  std::vector<double> results() const {
    std::vector<double> all;
    for (const auto& part : {y, d_u, d_delta, d_b, d_c}) {
      const auto values = widened(part);
      all.insert(all.end(), values.begin(), values.end());
    }
    for (const auto& part : {state, d_a, d_d, d_initial}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  // [rows, cols] from `at` on, or zeros.
  template <typename X>
  static Matrix matrix(const std::vector<X>& x, int64_t at, int64_t rows, int64_t cols,
                       bool given = true) {
    Matrix out(rows, cols);
    for (int64_t i = 0; given && i < rows * cols; ++i) {
      out(i / cols, i % cols) = static_cast<double>(static_cast<Accumulator<X>>(x[at + i]));
    }
    return out;
  }
  static void add(const Matrix& from, std::vector<double>& to, int64_t at) {
    for (int64_t i = 0; i < from.rows * from.cols; ++i) {
      to[at + i] += from(i / from.cols, i % from.cols);
    }
  }

  void compare_with_reference() const {
    std::vector<double> e_y(y.size()), e_state(state.size()), e_u(u.size()), e_delta(u.size()),
        e_a(a.size()), e_b(b.size()), e_c(c.size()), e_d(d.size()), e_initial(initial.size());
    const int64_t width = shape.width, states = shape.states;
    for (int64_t n = 0; n < sequences.count(); ++n) {
      const int64_t first = sequences.first_token(sequences.list[n]);
      const int64_t time = sequences.list[n].length, state_at = n * width * states;
      const reference::ScanInputs in{matrix(u, first * width, time, width),
                                     matrix(delta, first * width, time, width),
                                     matrix(a, 0, width, states),
                                     matrix(b, first * states, time, states),
                                     matrix(c, first * states, time, states),
                                     matrix(d, 0, width, 1, shape.skip),
                                     matrix(initial, state_at, width, states, shape.initial)};
      const reference::ScanOutputs out = reference::selective_scan(in);
      const reference::ScanInputs g =
          reference::selective_scan_gradients(in, matrix(grad_y, first * width, time, width),
                                              matrix(grad_state, state_at, width, states));
      add(out.y, e_y, first * width);
      add(out.h.back(), e_state, state_at);
      add(g.u, e_u, first * width);
      add(g.delta, e_delta, first * width);
      add(g.a, e_a, 0);
      add(g.b, e_b, first * states);
      add(g.c, e_c, first * states);
      add(g.d, e_d, 0);
      add(g.initial, e_initial, state_at);
    }
    expect_close(y, e_y, "y");
    expect_close(state, e_state, "state");
    expect_close(d_u, e_u, "d u");
    expect_close(d_delta, e_delta, "d delta");
    expect_close(d_a, e_a, "d A");
    expect_close(d_b, e_b, "d B");
    expect_close(d_c, e_c, "d C");
    expect_close(d_d, e_d, "d D");
    expect_close(d_initial, e_initial, "d initial_state");
  }
};

template <typename T>
class SelectiveScanTest : public ::testing::Test {};
TYPED_TEST_SUITE(SelectiveScanTest, StorageTypes);

TYPED_TEST(SelectiveScanTest, MatchesTheReference) {
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(::testing::PrintToString(s));
    Problem<TypeParam> problem(s);
    problem.run();
    problem.compare_with_reference();
  }
}

TYPED_TEST(SelectiveScanTest, EveryInstructionSetMatchesTheReference) {
  for_each_target([] {
    for (const int64_t width : {1, 15, 16, 17, 40}) {
      Problem<TypeParam> problem({2, 70, width, 3});
      problem.run();
      problem.compare_with_reference();
    }
  });
}

// A sequence a thread; one sequence shared by a team.
TYPED_TEST(SelectiveScanTest, SameBitsForAnyNumberOfThreads) {
  for (const Shape& s : {Shape{4, 100, 50, 4}, Shape{1, 700, 100, 5}}) {
    expect_same_for_any_threads([&] {
      Problem<TypeParam> problem(s);
      problem.run();
      return problem.results();
    });
  }
}

TYPED_TEST(SelectiveScanTest, LaterTokensAreNotSeen) {
  const int64_t cut = 90;
  Problem<TypeParam> plain({1, 130, 3}), changed({1, 130, 3});
  const auto spoil = [](std::vector<TypeParam>& x, int64_t at) {
    std::fill(x.begin() + at, x.end(), static_cast<TypeParam>(1e30f));
  };
  spoil(changed.u, cut * 3);
  spoil(changed.delta, cut * 3);
  spoil(changed.b, cut * 4);
  spoil(changed.c, cut * 4);
  plain.forward();
  changed.forward();
  plain.y.resize(cut * 3);
  changed.y.resize(cut * 3);
  EXPECT_TRUE(same_bits(plain.y, changed.y));
}

TYPED_TEST(SelectiveScanTest, GradientsThroughOneOutputAddUp) {
  Problem<TypeParam> both({1, 20, 3}), one({1, 20, 3}), other({1, 20, 3});
  both.run();
  one.forward();
  one.backward(true, false);
  other.forward();
  other.backward(false, true);
  std::vector<double> sum;
  for (size_t i = 0; i < both.d_initial.size(); ++i) {
    sum.push_back(static_cast<double>(one.d_initial[i]) + other.d_initial[i]);
    EXPECT_NE(other.d_initial[i], 0);
  }
  expect_close(both.d_initial, sum, "d initial_state");
}

TYPED_TEST(SelectiveScanTest, GradientsAreWrittenAlone) {
  Problem<TypeParam> p({2, 100, 20});
  p.run();
  auto d_b = unwritten<TypeParam>(p.b.size()), d_delta = unwritten<TypeParam>(p.u.size());
  auto d_a = unwritten<Accumulator<TypeParam>>(p.a.size());
  const auto write = [&](const SelectiveScanGradients<TypeParam>& out) {
    selective_scan_backward<TypeParam>(p.inputs(), p.checkpoints.data(), p.grad_y.data(),
                                       p.grad_state.data(), out);
  };
  write({.b = d_b.data()});
  write({.delta = d_delta.data()});
  write({.a = d_a.data()});
  EXPECT_TRUE(same_bits(d_b, p.d_b));
  EXPECT_TRUE(same_bits(d_delta, p.d_delta));
  EXPECT_TRUE(same_bits(d_a, p.d_a));
}

// Decays of 0, of about 10^-12, of 1 and above.
TEST(SelectiveScan, ExtremeDecaysStayExact) {
  Problem<float> p({1, 70, 3, 2});
  p.a = {-1000, -27, -1, 0, 0.01f, -0.5f};
  for (int64_t i = 90; i < 99; ++i) p.delta[i] = i % 2 == 0 ? 50 : 0;
  p.run();
  p.compare_with_reference();
}

TEST(SelectiveScan, NanIsNotHidden) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto expect_nan = [&](auto spoil) {
    Problem<float> p({1, 5, 2, 2});
    spoil(p);
    p.forward();
    EXPECT_TRUE(std::isnan(p.y[8]));
    EXPECT_FALSE(std::isnan(p.y[9]));
  };
  expect_nan([&](auto& p) { p.a[0] = nan; });
  expect_nan([&](auto& p) { p.delta[2] = nan; });
}

TEST(SelectiveScan, GradientsMatchFiniteDifferences) {
  for (const Shape& s : {Shape{2, 7, 3, 2}, Shape{1, 7, 2, 3, true, true, {0, 3, 3, 7}}}) {
    Problem<double> p(s);
    p.run();
    const auto loss = [&] {
      selective_scan<double>(p.inputs(), p.y.data(), p.state.data(), nullptr);
      return inner_product(p.y, p.grad_y) + inner_product(p.state, p.grad_state);
    };
    expect_gradient(p.d_u, finite_differences(p.u, loss), "u");
    expect_gradient(p.d_delta, finite_differences(p.delta, loss), "delta");
    expect_gradient(p.d_a, finite_differences(p.a, loss), "A");
    expect_gradient(p.d_b, finite_differences(p.b, loss), "B");
    expect_gradient(p.d_c, finite_differences(p.c, loss), "C");
    expect_gradient(p.d_d, finite_differences(p.d, loss), "D");
    expect_gradient(p.d_initial, finite_differences(p.initial, loss), "initial_state");
  }
}

}  // namespace
}  // namespace hopmix::kernels

#include "hopmix/kernels/scan/sliding_window_recurrence.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

struct Shape {
  int64_t batch, time, width, block, start = 0;
  bool initial = true;
  std::vector<int64_t> bounds = {};
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B" << s.batch << " T" << s.time << " E" << s.width << " block " << s.block
             << " start " << s.start << (s.initial ? " initial" : "")
             << (s.bounds.empty() ? "" : " packed");
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int64_t time : {0, 1, 2, 63, 64, 65, 100}) {
    for (const int64_t block : {1, 7, 16, 64, 1000}) {
      for (const int64_t start : {0, 5, 16}) {
        all.push_back({2, time, 20, block, start, start > 0});
      }
    }
  }
  all.push_back({1, 1000, 3, 16});
  all.push_back({1, 70, 20, 8, 3, true, {0, 0, 1, 34, 34, 69, 70, 70}});
  all.push_back({0, 5, 3, 2});
  return all;
}

template <typename T>
struct Problem {
  using A = Accumulator<T>;
  Shape shape;
  Sequences sequences;
  std::vector<T> a, x, grad_y, y, d_a, d_x;
  std::vector<A> initial, grad_state, state, d_initial;

  explicit Problem(const Shape& s)
      : shape(s),
        sequences(s.bounds.empty() ? Sequences::batched(s.batch, s.time)
                                   : Sequences::packed(s.bounds)) {
    const int64_t entries = s.batch * s.time * s.width, states = sequences.count() * 2 * s.width;
    a = random_values<T>(entries, 1, -1, 1);
    x = random_values<T>(entries, 2);
    grad_y = random_values<T>(entries, 3);
    initial = random_values<A>(states, 4);
    grad_state = random_values<A>(states, 5);
  }

  SlidingWindowInputs<T> inputs() const {
    return {a.data(),    x.data(),    shape.initial ? initial.data() : nullptr,
            shape.width, shape.block, shape.start,
            sequences};
  }

  void run() {
    y = unwritten<T>(x.size());
    state = unwritten<A>(initial.size());
    d_a = unwritten<T>(a.size());
    d_x = unwritten<T>(x.size());
    d_initial = unwritten<A>(initial.size());
    sliding_window_recurrence(inputs(), y.data(), state.data());
    sliding_window_recurrence_backward<T>(inputs(), y.data(), grad_y.data(), grad_state.data(),
                                          {d_a.data(), d_x.data(), d_initial.data()});
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

  // By the definition: for each token, and for both parts of the state, a recurrence of its own
  // that begins where its window does, and the chain rule back through that.
  void compare_with_reference() const {
    const auto in_a = widened(a), in_x = widened(x), in_g = widened(grad_y);
    std::vector<double> e_y(y.size()), e_state(state.size()), e_a(a.size()), e_x(x.size()),
        e_initial(initial.size());
    const auto block_of = [&](int64_t position) {
      return position < 0 ? -1 : position / shape.block;
    };
    for (int64_t n = 0; n < sequences.count(); ++n) {
      const Sequence& s = sequences.list[n];
      for (int64_t c = 0; c < shape.width; ++c) {
        const auto at = [&](int64_t t) {
          return (s.batch * shape.time + s.start + t) * shape.width + c;
        };
        const auto state_at = [&](int64_t which) { return (2 * n + which) * shape.width + c; };
        // The recurrence up to token t begun at the start of `first` (a block), and back from g.
        const auto run = [&](int64_t t, int64_t first, double g) {
          const int64_t begin = std::max<int64_t>(0, first * shape.block - shape.start);
          // Begun before this call: the part of the state that began there, if any did.
          const int64_t part = first - (block_of(shape.start - 1) - 1);
          const bool handed = first * shape.block < shape.start || (shape.start == 0 && first < 0);
          std::vector<double> h = {handed && shape.initial ? widened(initial)[state_at(part)] : 0};
          for (int64_t i = begin; i <= t; ++i) h.push_back(in_a[at(i)] * h.back() + in_x[at(i)]);
          for (int64_t i = t; i >= begin; --i) {
            e_x[at(i)] += g;
            e_a[at(i)] += g * h[i - begin];
            g *= in_a[at(i)];
          }
          if (handed) e_initial[state_at(part)] += g;
          return h.back();
        };
        for (int64_t t = 0; t < s.length; ++t) {
          e_y[at(t)] = run(t, block_of(shape.start + t) - 1, in_g[at(t)]);
        }
        for (const int64_t which : {0, 1}) {
          if (s.length == 0) {
            e_state[state_at(which)] = shape.initial ? widened(initial)[state_at(which)] : 0;
            e_initial[state_at(which)] = grad_state[state_at(which)];
            continue;
          }
          const int64_t first = block_of(shape.start + s.length - 1) - 1 + which;
          e_state[state_at(which)] = run(s.length - 1, first, grad_state[state_at(which)]);
        }
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
class SlidingWindowRecurrenceTest : public ::testing::Test {};
TYPED_TEST_SUITE(SlidingWindowRecurrenceTest, StorageTypes);

TYPED_TEST(SlidingWindowRecurrenceTest, MatchesTheReference) {
  for (const Shape& s : shapes()) {
    SCOPED_TRACE(::testing::PrintToString(s));
    Problem<TypeParam> problem(s);
    problem.run();
    problem.compare_with_reference();
  }
}

TYPED_TEST(SlidingWindowRecurrenceTest, SameBitsForAnyNumberOfThreads) {
  expect_same_for_any_threads([] {
    Problem<TypeParam> problem({2, 100, 130, 16});
    problem.run();
    return problem.results();
  });
}

// Neither later tokens are seen nor those behind the window, in a single bit.
TYPED_TEST(SlidingWindowRecurrenceTest, OnlyTheWindowIsSeen) {
  Problem<TypeParam> plain({1, 64, 3, 8}), changed({1, 64, 3, 8});
  const auto spoil = [&](int64_t first, int64_t last) {
    for (auto* part : {&changed.a, &changed.x}) {
      std::fill(part->begin() + first * 3, part->begin() + last * 3, static_cast<TypeParam>(1e30f));
    }
  };
  spoil(0, 24);
  spoil(45, 64);
  plain.run();
  changed.run();
  for (int64_t i = 32 * 3; i < 45 * 3; ++i) {
    EXPECT_EQ(widened(plain.y)[i], widened(changed.y)[i]);
  }
  EXPECT_NE(widened(plain.y)[31 * 3], widened(changed.y)[31 * 3]);
}

TEST(SlidingWindowRecurrence, GradientsMatchFiniteDifferences) {
  for (const Shape& s :
       {Shape{2, 7, 3, 2}, Shape{1, 9, 2, 4, 3}, Shape{1, 7, 2, 2, 4, true, {0, 3, 3, 7}}}) {
    Problem<double> p(s);
    p.run();
    const auto loss = [&] {
      sliding_window_recurrence(p.inputs(), p.y.data(), p.state.data());
      return inner_product(p.y, p.grad_y) + inner_product(p.state, p.grad_state);
    };
    expect_gradient(p.d_a, finite_differences(p.a, loss), "a");
    expect_gradient(p.d_x, finite_differences(p.x, loss), "x");
    expect_gradient(p.d_initial, finite_differences(p.initial, loss), "initial_state");
  }
}

}  // namespace
}  // namespace hopmix::kernels

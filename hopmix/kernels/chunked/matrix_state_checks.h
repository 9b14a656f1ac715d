// Checks for every recurrence of matrix_state.h, used by the tests of linear_attention.h and
// delta_rule.h.
#pragma once

#include <array>

#include "hopmix/kernels/base/test_data.h"
#include "hopmix/kernels/chunked/matrix_state.h"
#include "hopmix/kernels/chunked/matrix_state_reference.h"
#include "hopmix/kernels/gemm.h"

namespace hopmix::kernels::testing {

enum class DecayOf { kNothing, kHead, kChannel };

struct StateShape {
  int64_t batch, time, heads, kv_heads, key_width, value_width;
  bool initial = true;
  std::vector<int64_t> bounds = {};
};

inline std::ostream& operator<<(std::ostream& out, const StateShape& s) {
  return out << "B" << s.batch << " T" << s.time << " H" << s.heads << " G" << s.kv_heads << " DK"
             << s.key_width << " DV" << s.value_width << (s.initial ? " initial" : "")
             << (s.bounds.empty() ? "" : " packed");
}

inline std::vector<StateShape> state_shapes() {
  return {{2, 0, 2, 1, 3, 5},
          {2, 1, 2, 1, 3, 5},
          {1, 2, 1, 1, 20, 3},
          {1, 63, 1, 1, 64, 20},
          {1, 64, 2, 2, 20, 64},
          {1, 65, 1, 1, 100, 64},
          {1, 100, 1, 1, 64, 100},
          {2, 129, 4, 2, 3, 7},
          {1, 200, 3, 1, 16, 33},
          {1, 140, 2, 1, 20, 12, false},
          {1, 1000, 1, 1, 5, 3},
          {0, 5, 2, 1, 3, 3},
          {1, 341, 4, 2, 5, 7, true, {0, 0, 1, 64, 64, 129, 139, 140, 341, 341}}};
}

/// One of the operators.
template <typename T>
struct StateOperator {
  DecayOf decay;
  bool corrects;
  void (*forward)(const MatrixStateInputs<T>&, T*, Accumulator<T>*);
  void (*backward)(const MatrixStateInputs<T>&, const T*, const Accumulator<T>*,
                   const MatrixStateGradients<T>&);
};

template <typename T>
struct StateProblem {
  using A = Accumulator<T>;
  static constexpr double kScale = 0.7;
  StateOperator<T> op;
  StateShape shape;
  Sequences sequences;
  std::vector<T> q, k, v, log_decay, beta, grad_o, o, d_q, d_k, d_v, d_log_decay, d_beta;
  std::vector<A> initial, grad_state, state, d_initial;

  StateProblem(const StateOperator<T>& o_, const StateShape& s)
      : op(o_),
        shape(s),
        sequences(s.bounds.empty() ? Sequences::batched(s.batch, s.time)
                                   : Sequences::packed(s.bounds)) {
    const int64_t tokens = sequences.tokens();
    const int64_t states = sequences.count() * s.heads * s.key_width * s.value_width;
    q = random_values<T>(tokens * s.heads * s.key_width, 1);
    k = unit_rows(tokens * s.kv_heads);
    v = random_values<T>(tokens * s.kv_heads * s.value_width, 3);
    if (op.decay != DecayOf::kNothing) {
      log_decay = random_values<T>(tokens * s.heads * gates(), 4, -0.5, 0);
    }
    if (op.corrects) beta = random_values<T>(tokens * s.heads, 5, 0, 1);
    initial = random_values<A>(states, 6);
    grad_o = random_values<T>(tokens * s.heads * s.value_width, 7);
    grad_state = random_values<A>(states, 8);
  }

  int64_t gates() const { return op.decay == DecayOf::kChannel ? shape.key_width : 1; }

  // Keys of norm 1, as the delta rules require, so that states stay bounded.
  std::vector<T> unit_rows(int64_t rows) const {
    const std::vector<float> x = random_values<float>(rows * shape.key_width, 2);
    std::vector<T> out;
    for (size_t i = 0; i < x.size(); ++i) {
      const float* row = x.data() + i / shape.key_width * shape.key_width;
      float sum = 0;
      for (int64_t c = 0; c < shape.key_width; ++c) sum += row[c] * row[c];
      out.push_back(static_cast<T>(x[i] / std::sqrt(sum)));
    }
    return out;
  }

  template <typename X>
  static X* data_or_null(std::vector<X>& x) {
    return x.empty() ? nullptr : x.data();
  }
  template <typename X>
  static const X* data_or_null(const std::vector<X>& x) {
    return x.empty() ? nullptr : x.data();
  }

  MatrixStateInputs<T> inputs() const {
    return {q.data(),
            k.data(),
            v.data(),
            op.decay == DecayOf::kNothing ? nullptr : log_decay.data(),
            op.decay == DecayOf::kChannel,
            op.corrects ? beta.data() : nullptr,
            shape.initial ? initial.data() : nullptr,
            shape.heads,
            shape.kv_heads,
            shape.key_width,
            shape.value_width,
            kScale,
            sequences};
  }

  void forward() {
    o = unwritten<T>(grad_o.size());
    state = unwritten<A>(initial.size());
    op.forward(inputs(), o.data(), state.data());
  }

  /// `wanted`: of q, k, v, log_decay, beta and the initial state.
  void backward(bool from_o = true, bool from_state = true, unsigned wanted = 63) {
    d_q = unwritten<T>(wanted & 1 ? q.size() : 0);
    d_k = unwritten<T>(wanted & 2 ? k.size() : 0);
    d_v = unwritten<T>(wanted & 4 ? v.size() : 0);
    d_log_decay = unwritten<T>(wanted & 8 ? log_decay.size() : 0);
    d_beta = unwritten<T>(wanted & 16 ? beta.size() : 0);
    d_initial = unwritten<A>(wanted & 32 ? initial.size() : 0);
    op.backward(inputs(), from_o ? grad_o.data() : nullptr,
                from_state ? grad_state.data() : nullptr,
                {data_or_null(d_q), data_or_null(d_k), data_or_null(d_v), data_or_null(d_log_decay),
                 data_or_null(d_beta), data_or_null(d_initial)});
  }

  void run() {
    forward();
    backward();
  }

  std::vector<double> results() const {
    std::vector<double> all;
    for (const auto* part : {&o, &d_q, &d_k, &d_v, &d_log_decay, &d_beta}) {
      const auto values = widened(*part);
      all.insert(all.end(), values.begin(), values.end());
    }
    for (const auto* part : {&state, &d_initial}) all.insert(all.end(), part->begin(), part->end());
    return all;
  }

  struct Expected {
    std::vector<double> o, state, q, k, v, log_decay, beta, initial;
  };

  static Matrix matrix_at(const std::vector<A>& x, int64_t at, int64_t rows, int64_t cols) {
    Matrix out(rows, cols);
    for (int64_t i = 0; i < rows * cols; ++i) out.data[i] = x[at + i];
    return out;
  }

  /// Head by head.
  Expected reference(bool from_o = true, bool from_state = true) const {
    const int64_t heads = shape.heads, kv_heads = shape.kv_heads, keys = shape.key_width;
    const int64_t values = shape.value_width;
    Expected all{std::vector<double>(grad_o.size()), std::vector<double>(state.size()),
                 std::vector<double>(q.size()),      std::vector<double>(k.size()),
                 std::vector<double>(v.size()),      std::vector<double>(log_decay.size()),
                 std::vector<double>(beta.size()),   std::vector<double>(initial.size())};
    const auto wide_q = widened(q), wide_k = widened(k), wide_v = widened(v);
    const auto wide_g = widened(log_decay), wide_beta = widened(beta), wide_d = widened(grad_o);
    for (int64_t n = 0; n < sequences.count(); ++n) {
      const Sequence& s = sequences.list[n];
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t at = (n * heads + head) * keys * values, kv = head * kv_heads / heads;
        Matrix g(s.length, keys);
        if (op.decay != DecayOf::kNothing) {
          const Matrix given = slice(wide_g, sequences, s, heads, head, gates());
          for (int64_t i = 0; i < s.length * keys; ++i) {
            g.data[i] = given.data[op.decay == DecayOf::kChannel ? i : i / keys];
          }
        }
        const reference::MatrixRecurrence problem{
            slice(wide_q, sequences, s, heads, head, keys),
            slice(wide_k, sequences, s, kv_heads, kv, keys),
            slice(wide_v, sequences, s, kv_heads, kv, values),
            g,
            op.corrects ? slice(wide_beta, sequences, s, heads, head, 1) : Matrix(0, 1),
            shape.initial ? matrix_at(initial, at, keys, values) : Matrix(keys, values),
            kScale};
        const auto out = reference::matrix_recurrence(problem);
        const auto d = reference::matrix_recurrence_gradients(
            problem,
            from_o ? slice(wide_d, sequences, s, heads, head, values) : Matrix(s.length, values),
            from_state ? matrix_at(grad_state, at, keys, values) : Matrix(keys, values));
        unslice(out.o, sequences, s, heads, head, all.o);
        std::copy(out.state.data.begin(), out.state.data.end(), all.state.begin() + at);
        unslice(d.q, sequences, s, heads, head, all.q);
        unslice(d.k, sequences, s, kv_heads, kv, all.k);
        unslice(d.v, sequences, s, kv_heads, kv, all.v);
        if (op.decay != DecayOf::kNothing)
          unslice(gate_gradient(d), sequences, s, heads, head, all.log_decay);
        if (op.corrects) unslice(d.beta, sequences, s, heads, head, all.beta);
        std::copy(d.state.data.begin(), d.state.data.end(), all.initial.begin() + at);
      }
    }
    return all;
  }

  Matrix gate_gradient(const reference::MatrixRecurrence& d) const {
    if (op.decay == DecayOf::kChannel) return d.log_decay;
    Matrix sums(d.log_decay.rows, 1);
    for (int64_t t = 0; t < sums.rows; ++t) {
      for (int64_t c = 0; c < d.log_decay.cols; ++c) sums(t, 0) += d.log_decay(t, c);
    }
    return sums;
  }

  void compare_with_reference(bool from_o = true, bool from_state = true) const {
    const Expected expected = reference(from_o, from_state);
    expect_sums(o, expected.o, "o");
    expect_sums(state, expected.state, "state");
    expect_sums(d_q, expected.q, "dq");
    expect_sums(d_k, expected.k, "dk");
    expect_sums(d_v, expected.v, "dv");
    expect_sums(d_log_decay, expected.log_decay, "dlog_decay");
    expect_sums(d_beta, expected.beta, "dbeta");
    expect_sums(d_initial, expected.initial, "dinitial");
  }

  /// Entrywise tolerance relative to the largest value: 32 roundings of the sums; if products round
  /// their operands to bfloat16, each counts as 2^-9. NaN fails.
  template <typename X>
  static void expect_sums(const std::vector<X>& actual, const std::vector<double>& expected,
                          const char* what) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    double largest = 1;
    for (const double x : expected) largest = std::max(largest, std::abs(x));
    const bool rounds_operands = kRoundsOutput<T> && has_bfloat16_gemm();
    const double unit =
        rounds_operands ? std::ldexp(3, -13) : std::numeric_limits<Accumulator<X>>::epsilon();
    const double output = kRoundsOutput<X> ? std::ldexp(1, -8) : 0;
    const std::vector<double> values = widened(actual);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double error = std::abs(values[i] - expected[i]);
      ASSERT_TRUE(error <= 32 * unit * largest + output * std::abs(expected[i]))
          << what << " entry " << i << ": " << values[i] << " instead of " << expected[i]
          << ", largest " << largest;
    }
  }
};

template <typename T>
void expect_reference(const StateOperator<T>& op, const StateShape& s) {
  SCOPED_TRACE(::testing::PrintToString(s));
  StateProblem<T> problem(op, s);
  problem.run();
  problem.compare_with_reference();
}

/// Outputs and all gradients: every shape on one instruction set, a few on the others.
template <typename T>
void expect_the_recurrence(const StateOperator<T>& op) {
  const OneThread guard;
  for (const StateShape& s : state_shapes()) expect_reference(op, s);
  for_each_target([&] {
    for (const int64_t width : {1, 3, 16, 17, 33}) {
      expect_reference(op, {1, 70, 2, 1, width, width + 1});
    }
  });
}

/// Decays of any strength: the gradient of what a strong decay cuts off is small, not the rounding
/// error of a large one.
template <typename T>
void expect_any_decay(const StateOperator<T>& op) {
  if (op.decay == DecayOf::kNothing) return;
  const float infinity = std::numeric_limits<float>::infinity();
  for (int kind = 0; kind < 5; ++kind) {
    SCOPED_TRACE(kind);
    StateProblem<T> problem(op, {1, 150, 2, 1, 20, 5});
    const int64_t gates = problem.gates(), row = 2 * gates;
    auto& g = problem.log_decay;
    for (size_t i = 0; i < g.size(); ++i) {
      const int64_t t = static_cast<int64_t>(i) / row;
      if (kind == 0) g[i] = static_cast<T>(t == 70 ? -50.0f : 0.0f);          // one
      if (kind == 1) g[i] = static_cast<T>(-100.0f);                          // every one
      if (kind == 2) g[i] = static_cast<T>(t % 70 == 5 ? -infinity : -0.1f);  // forgets all
      if (kind == 3 && t % 16 == 0) g[i] = static_cast<T>(-300.0f);           // small behind strong
      if (kind == 4 && i % 3 == 0) g[i] = static_cast<T>(-infinity);          // some, at any time
    }
    problem.run();
    problem.compare_with_reference();
    const auto expected = problem.reference();
    const auto actual = widened(problem.d_log_decay);
    for (size_t i = 0; i < actual.size(); ++i) {
      if (std::abs(expected.log_decay[i]) < 1e-20) {
        ASSERT_LT(std::abs(actual[i]), 1e-15) << i;
      }
    }
  }
}

/// Gradients from o only and from the last state only; requesting only some gradients does not
/// change their bits.
template <typename T>
void expect_parts(const StateOperator<T>& op) {
  const StateShape shape{1, 140, 4, 2, 20, 5};
  StateProblem<T> whole(op, shape);
  whole.forward();
  for (const bool from_o : {true, false}) {
    whole.backward(from_o, !from_o);
    whole.compare_with_reference(from_o, !from_o);
  }
  whole.backward();
  for (unsigned index = 0; index < 6; ++index) {
    StateProblem<T> one(op, shape);
    one.backward(true, true, 1u << index);
    EXPECT_TRUE(one.d_q.empty() || same_bits(one.d_q, whole.d_q));
    EXPECT_TRUE(one.d_k.empty() || same_bits(one.d_k, whole.d_k));
    EXPECT_TRUE(one.d_v.empty() || same_bits(one.d_v, whole.d_v));
    EXPECT_TRUE(one.d_log_decay.empty() || same_bits(one.d_log_decay, whole.d_log_decay));
    EXPECT_TRUE(one.d_beta.empty() || same_bits(one.d_beta, whole.d_beta));
    EXPECT_TRUE(one.d_initial.empty() || same_bits(one.d_initial, whole.d_initial));
  }
}

template <typename T>
void expect_same_for_threads(const StateOperator<T>& op) {
  for (const StateShape& s : {StateShape{2, 200, 6, 2, 20, 12}, {1, 150, 1, 1, 64, 64}}) {
    expect_same_for_any_threads([&] {
      StateProblem<T> problem(op, s);
      problem.run();
      return problem.results();
    });
  }
}

/// The gradients of all inputs compared with finite differences, across an edge between chunks.
inline void expect_finite_differences(const StateOperator<double>& op) {
  StateProblem<double> p(op, {1, 67, 2, 1, 3, 2});
  const auto loss = [&] {
    p.forward();
    return inner_product(p.o, p.grad_o) + inner_product(p.state, p.grad_state);
  };
  p.run();
  expect_gradient(p.d_q, finite_differences(p.q, loss), "q");
  expect_gradient(p.d_k, finite_differences(p.k, loss), "k");
  expect_gradient(p.d_v, finite_differences(p.v, loss), "v");
  expect_gradient(p.d_log_decay, finite_differences(p.log_decay, loss), "log_decay");
  expect_gradient(p.d_beta, finite_differences(p.beta, loss), "beta");
  expect_gradient(p.d_initial, finite_differences(p.initial, loss), "initial");
}

/// bfloat16 products computed by definition, for processors without them.
inline void plain_bfloat16(int64_t m, int64_t n, int64_t k, const Bfloat16* a, int64_t lda,
                           const Bfloat16* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = add ? c[i * ldc + j] : 0;
      for (int64_t x = 0; x < k; ++x) {
        sum += static_cast<float>(a[i * lda + x]) *
               static_cast<float>(b[right_index<Bfloat16>(x, j, ldb)]);
      }
      c[i * ldc + j] = sum;
    }
  }
}

/// Calls run() with an engine that has bfloat16 products.
template <typename Run>
void with_bfloat16_products(const Run& run) {
  const GemmEngine before = gemm_engine();
  GemmEngine engine = before;
  engine.bf16 = plain_bfloat16;
  use_gemm_engine(engine);
  run();
  use_gemm_engine(before);
}

}  // namespace hopmix::kernels::testing

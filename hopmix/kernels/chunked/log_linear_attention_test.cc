// Log-linear attention against its definition: every pair of tokens by itself, in double.
#include "hopmix/kernels/chunked/log_linear_attention.h"

#include <gtest/gtest.h>

#include <bit>

#include "hopmix/kernels/chunked/fenwick.h"
#include "hopmix/kernels/chunked/matrix_state_checks.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

struct Head {
  Matrix q, k, v, log_decay, beta, factors;  // beta [0,1]: none
  double scale;
};

int64_t level_of(int64_t i, int64_t j) { return std::bit_width(static_cast<uint64_t>(i ^ j)); }

// What is left at token t of the key that j wrote: the factors e^g (1 - beta k k^T) of j < s <= t.
std::vector<std::vector<double>> carried_keys(const Head& in, int64_t j) {
  const int64_t keys = in.q.cols;
  std::vector<std::vector<double>> p;
  for (int64_t t = j; t < in.q.rows; ++t) {
    const double beta = in.beta.rows > 0 ? in.beta(t, 0) : 1;
    std::vector<double> x(keys);
    if (t == j) {
      for (int64_t c = 0; c < keys; ++c) x[c] = beta * in.k(j, c);
    } else {
      double dot = 0;
      for (int64_t c = 0; c < keys; ++c) {
        x[c] = std::exp(in.log_decay(t, 0)) * p.back()[c];
        dot += in.k(t, c) * x[c];
      }
      for (int64_t c = 0; c < keys && in.beta.rows > 0; ++c) x[c] -= beta * in.k(t, c) * dot;
    }
    p.push_back(x);
  }
  return p;
}

// o, and unless d_o is null the gradients of all inputs.
Matrix definition(const Head& in, const Matrix* d_o, Head* d) {
  const int64_t time = in.q.rows, keys = in.q.cols, values = in.v.cols;
  Matrix o(time, values);
  for (int64_t j = 0; j < time; ++j) {
    const auto p = carried_keys(in, j);
    std::vector<double> back(keys);  // the gradient of p at t
    for (int64_t t = time - 1; t >= j; --t) {
      const std::vector<double>& now = p[t - j];
      const int64_t level = level_of(t, j);
      const double factor = in.scale * in.factors(t, level);
      double weight = 0, sent = 0;
      for (int64_t c = 0; c < keys; ++c) weight += in.q(t, c) * now[c];
      for (int64_t x = 0; x < values; ++x) o(t, x) += factor * weight * in.v(j, x);
      if (d_o == nullptr) continue;
      for (int64_t x = 0; x < values; ++x) {
        sent += (*d_o)(t, x) * in.v(j, x);
        d->v(j, x) += factor * weight * (*d_o)(t, x);
      }
      d->factors(t, level) += in.scale * weight * sent;
      for (int64_t c = 0; c < keys; ++c) {
        d->q(t, c) += factor * sent * now[c];
        back[c] += factor * sent * in.q(t, c);
      }
      const bool corrects = in.beta.rows > 0;
      const double beta = corrects ? in.beta(t, 0) : 1;
      if (t == j) {
        for (int64_t c = 0; c < keys; ++c) {
          if (corrects) d->beta(j, 0) += back[c] * in.k(j, c);
          d->k(j, c) += beta * back[c];
        }
        continue;
      }
      const double decay = std::exp(in.log_decay(t, 0));
      double key_before = 0, key_back = 0;
      for (int64_t c = 0; c < keys; ++c) {
        key_before += in.k(t, c) * decay * p[t - j - 1][c];
        key_back += in.k(t, c) * back[c];
      }
      if (corrects) d->beta(t, 0) -= key_back * key_before;
      for (int64_t c = 0; c < keys; ++c) {
        const double before = decay * p[t - j - 1][c];
        if (corrects) {
          d->k(t, c) -= beta * (back[c] * key_before + before * key_back);
          back[c] -= beta * in.k(t, c) * key_back;
        }
        d->log_decay(t, 0) += back[c] * before;
        back[c] *= decay;
      }
    }
  }
  return o;
}

struct Shape {
  int64_t batch, time, heads, kv_heads, key_width, value_width, more_levels = 0;
  std::vector<int64_t> bounds = {};
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B" << s.batch << " T" << s.time << " H" << s.heads << " G" << s.kv_heads << " DK"
             << s.key_width << " DV" << s.value_width << (s.bounds.empty() ? "" : " packed");
}

std::vector<Shape> shapes() {
  return {{2, 0, 2, 1, 3, 5, 1},
          {2, 1, 2, 1, 3, 5},
          {1, 2, 1, 1, 20, 3, 2},
          {1, 63, 1, 1, 20, 3},
          {1, 64, 2, 1, 64, 20},
          {1, 65, 1, 1, 20, 64, 3},
          {1, 100, 2, 2, 16, 33},
          {1, 330, 4, 2, 3, 5},
          {1, 1000, 1, 1, 5, 3},
          {0, 5, 2, 1, 3, 3},
          {1, 341, 2, 1, 5, 7, 0, {0, 0, 1, 64, 64, 139, 341, 341}}};
}

template <typename T>
struct Problem {
  Shape shape;
  bool corrects;
  Sequences sequences;
  int64_t levels;
  std::vector<T> q, k, v, log_decay, beta, factors, grad_o;
  std::vector<T> o, d_q, d_k, d_v, d_log_decay, d_beta, d_factors;

  Problem(const Shape& s, bool delta)
      : shape(s),
        corrects(delta),
        sequences(s.bounds.empty() ? Sequences::batched(s.batch, s.time)
                                   : Sequences::packed(s.bounds)),
        levels(fenwick_levels(sequences.longest()) + s.more_levels) {
    const int64_t tokens = sequences.tokens();
    q = random_values<T>(tokens * s.heads * s.key_width, 1);
    const float most = 1 / std::sqrt(static_cast<float>(s.key_width));  // norms below 1
    k = random_values<T>(tokens * s.kv_heads * s.key_width, 2, -most, most);
    v = random_values<T>(tokens * s.kv_heads * s.value_width, 3);
    log_decay = random_values<T>(tokens * s.heads, 4, -0.2, 0);
    if (corrects) beta = random_values<T>(tokens * s.heads, 5, 0, 1);
    factors = random_values<T>(tokens * s.heads * levels, 6);
    grad_o = random_values<T>(tokens * s.heads * s.value_width, 7);
  }

  LogLinearInputs<T> inputs() const {
    return {
        {q.data(), k.data(), v.data(), log_decay.data(), false, corrects ? beta.data() : nullptr,
         nullptr, shape.heads, shape.kv_heads, shape.key_width, shape.value_width, 0.7, sequences},
        factors.data(),
        levels};
  }

  void forward() {
    o = unwritten<T>(grad_o.size());
    log_linear_attention(inputs(), o.data());
  }

  void backward(unsigned wanted = 63) {
    d_q = unwritten<T>(wanted & 1 ? q.size() : 0);
    d_k = unwritten<T>(wanted & 2 ? k.size() : 0);
    d_v = unwritten<T>(wanted & 4 ? v.size() : 0);
    d_log_decay = unwritten<T>(wanted & 8 ? log_decay.size() : 0);
    d_beta = unwritten<T>(wanted & 16 ? beta.size() : 0);
    d_factors = unwritten<T>(wanted & 32 ? factors.size() : 0);
    const auto at = [](std::vector<T>& x) { return x.empty() ? nullptr : x.data(); };
    log_linear_attention_backward(
        inputs(), grad_o.data(),
        {{at(d_q), at(d_k), at(d_v), at(d_log_decay), at(d_beta), nullptr}, at(d_factors)});
  }

  void run() {
    forward();
    backward();
  }

  std::vector<double> results() const {
    std::vector<double> all;
    for (const auto* part : {&o, &d_q, &d_k, &d_v, &d_log_decay, &d_beta, &d_factors}) {
      const auto values = widened(*part);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  void compare_with_reference() const {
    const int64_t heads = shape.heads, kv_heads = shape.kv_heads;
    std::vector<double> e_o(o.size()), e_q(q.size()), e_k(k.size()), e_v(v.size());
    std::vector<double> e_g(log_decay.size()), e_beta(beta.size()), e_factors(factors.size());
    for (const Sequence& s : sequences.list) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t kv = head * kv_heads / heads;
        const auto part = [&](const std::vector<T>& x, int64_t of, int64_t which, int64_t width) {
          return slice(widened(x), sequences, s, of, which, width);
        };
        const Head in{part(q, heads, head, shape.key_width),
                      part(k, kv_heads, kv, shape.key_width),
                      part(v, kv_heads, kv, shape.value_width),
                      part(log_decay, heads, head, 1),
                      corrects ? part(beta, heads, head, 1) : Matrix(0, 1),
                      part(factors, heads, head, levels),
                      0.7};
        Head d{Matrix(s.length, shape.key_width),
               Matrix(s.length, shape.key_width),
               Matrix(s.length, shape.value_width),
               Matrix(s.length, 1),
               Matrix(in.beta.rows, 1),
               Matrix(s.length, levels),
               0};
        const Matrix d_o = part(grad_o, heads, head, shape.value_width);
        unslice(definition(in, &d_o, &d), sequences, s, heads, head, e_o);
        unslice(d.q, sequences, s, heads, head, e_q);
        unslice(d.k, sequences, s, kv_heads, kv, e_k);
        unslice(d.v, sequences, s, kv_heads, kv, e_v);
        unslice(d.log_decay, sequences, s, heads, head, e_g);
        if (corrects) unslice(d.beta, sequences, s, heads, head, e_beta);
        unslice(d.factors, sequences, s, heads, head, e_factors);
      }
    }
    using Checks = StateProblem<T>;
    Checks::expect_sums(o, e_o, "o");
    Checks::expect_sums(d_q, e_q, "dq");
    Checks::expect_sums(d_k, e_k, "dk");
    Checks::expect_sums(d_v, e_v, "dv");
    Checks::expect_sums(d_log_decay, e_g, "dlog_decay");
    Checks::expect_sums(d_beta, e_beta, "dbeta");
    Checks::expect_sums(d_factors, e_factors, "dfactors");
  }
};

template <typename T>
void expect_definition(const Shape& s, bool corrects) {
  SCOPED_TRACE(::testing::PrintToString(s) + (corrects ? " delta" : ""));
  Problem<T> problem(s, corrects);
  problem.run();
  problem.compare_with_reference();
}

template <typename T>
class LogLinearAttentionTest : public ::testing::Test {};
TYPED_TEST_SUITE(LogLinearAttentionTest, StorageTypes);

TYPED_TEST(LogLinearAttentionTest, IsTheDefinition) {
  for (const bool corrects : {false, true}) {
    for (const Shape& s : shapes()) expect_definition<TypeParam>(s, corrects);
  }
}

TYPED_TEST(LogLinearAttentionTest, EveryInstructionSet) {
  for_each_target([] {
    for (const bool corrects : {false, true}) {
      for (const int64_t width : {1, 3, 17, 33}) {
        expect_definition<TypeParam>({1, 135, 2, 1, width, width + 1}, corrects);
      }
    }
  });
}

TYPED_TEST(LogLinearAttentionTest, DecaysOfAnyStrength) {
  using T = TypeParam;
  for (const bool corrects : {false, true}) {
    for (const float strong : {-50.0f, -300.0f, -std::numeric_limits<float>::infinity()}) {
      Problem<T> problem({1, 200, 2, 1, 5, 3}, corrects);
      for (size_t i = 0; i < problem.log_decay.size(); i += 23) {
        problem.log_decay[i] = static_cast<T>(strong);
      }
      problem.run();
      problem.compare_with_reference();
    }
  }
}

TYPED_TEST(LogLinearAttentionTest, OnlyGradientsThatAreAskedFor) {
  for (const bool corrects : {false, true}) {
    Problem<TypeParam> whole({1, 200, 4, 2, 5, 3}, corrects);
    whole.backward();
    for (unsigned index = 0; index < 6; ++index) {
      Problem<TypeParam> one({1, 200, 4, 2, 5, 3}, corrects);
      one.backward(1u << index);
      EXPECT_TRUE(one.d_q.empty() || same_bits(one.d_q, whole.d_q));
      EXPECT_TRUE(one.d_k.empty() || same_bits(one.d_k, whole.d_k));
      EXPECT_TRUE(one.d_v.empty() || same_bits(one.d_v, whole.d_v));
      EXPECT_TRUE(one.d_log_decay.empty() || same_bits(one.d_log_decay, whole.d_log_decay));
      EXPECT_TRUE(one.d_beta.empty() || same_bits(one.d_beta, whole.d_beta));
      EXPECT_TRUE(one.d_factors.empty() || same_bits(one.d_factors, whole.d_factors));
    }
  }
}

TYPED_TEST(LogLinearAttentionTest, SameBitsForAnyNumberOfThreads) {
  for (const bool corrects : {false, true}) {
    expect_same_for_any_threads([&] {
      Problem<TypeParam> problem({2, 200, 6, 2, 20, 12}, corrects);
      problem.run();
      return problem.results();
    });
  }
}

TEST(LogLinearAttention, FiniteDifferences) {
  for (const bool corrects : {false, true}) {
    Problem<double> p({1, 67, 2, 1, 3, 2}, corrects);
    p.run();
    const auto loss = [&] {
      p.forward();
      return inner_product(p.o, p.grad_o);
    };
    expect_gradient(p.d_q, finite_differences(p.q, loss), "q");
    expect_gradient(p.d_k, finite_differences(p.k, loss), "k");
    expect_gradient(p.d_v, finite_differences(p.v, loss), "v");
    expect_gradient(p.d_log_decay, finite_differences(p.log_decay, loss), "log_decay");
    expect_gradient(p.d_beta, finite_differences(p.beta, loss), "beta");
    expect_gradient(p.d_factors, finite_differences(p.factors, loss), "factors");
  }
}

TEST(LogLinearAttention, ProductsOfBfloat16) {
  with_bfloat16_products([] {
    for (const bool corrects : {false, true}) {
      expect_definition<Bfloat16>({1, 140, 2, 1, 20, 12}, corrects);
      expect_definition<Bfloat16>({1, 65, 1, 1, 64, 20}, corrects);
    }
  });
}

}  // namespace
}  // namespace hopmix::kernels

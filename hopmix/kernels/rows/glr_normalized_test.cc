#include "hopmix/kernels/rows/glr_normalized.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/reference.h"
#include "hopmix/kernels/base/test_data.h"
#include "hopmix/kernels/rows/glr.h"

namespace hopmix::kernels {
namespace {

using reference::Matrix;
using namespace testing;  // NOLINT: the helpers of these tests

constexpr double kAbsent = -std::numeric_limits<double>::infinity();

// One problem: inputs, outputs and gradients, all flat.
template <typename T>
struct Problem {
  using A = Accumulator<T>;

  Case sizes;
  Sequences sequences;
  Pattern pattern;
  Csr csr;
  Rows rows;
  ReadLayout reads;
  std::vector<T> log_alpha_diag, log_alpha, log_beta, x, grad_y, y;
  std::vector<A> log_z, grad_log_z;
  std::vector<T> d_log_alpha_diag, d_log_alpha, d_log_beta, d_x;

  explicit Problem(const Case& c, double largest = 2, bool on_the_fly = false)
      : sizes(c),
        sequences(c.sequences()),
        pattern(c.pattern, sequences.longest()),
        csr(to_csr(pattern)),
        rows(on_the_fly ? Rows(pattern) : Rows(csr)),
        reads(rows, sequences) {
    const int64_t planes = c.batch * c.heads, entries = planes * c.time * c.value_width;
    log_alpha_diag = random_values<T>(planes * c.time, 1, -largest, largest);
    log_alpha = random_values<T>(planes * reads.nnz, 2, -largest, largest);
    // Recurrent terms sum to about as much as direct ones, so that log z stays small: its rounding
    // is an error of the weights.
    double most = 1;
    for (int64_t i = 0; i < csr.rows(); ++i) {
      most = std::max(most, static_cast<double>(csr.row_ptr[i + 1] - csr.row_ptr[i]));
    }
    log_beta = random_values<T>(planes * reads.nnz, 3, -largest - std::log(most),
                                largest - std::log(most));
    x = random_values<T>(entries, 4);
    grad_y = random_values<T>(entries, 5);
    grad_log_z = random_values<A>(planes * c.time, 6);
  }
  Problem(const Problem&) = delete;

  GlrNormalizedInputs<T> inputs() const {
    return {log_alpha_diag.data(),
            log_alpha.data(),
            log_beta.data(),
            x.data(),
            sizes.heads,
            sizes.value_width,
            sequences,
            rows,
            reads};
  }

  void forward() {
    y = unwritten<T>(x.size());
    log_z = unwritten<A>(grad_log_z.size());
    glr_normalized(inputs(), y.data(), log_z.data());
  }

  void run() {
    forward();
    d_log_alpha_diag = unwritten<T>(log_alpha_diag.size());
    d_log_alpha = unwritten<T>(log_alpha.size());
    d_log_beta = unwritten<T>(log_beta.size());
    d_x = unwritten<T>(x.size());
    glr_normalized_backward(
        inputs(), y.data(), grad_y.data(), grad_log_z.data(),
        {d_log_alpha_diag.data(), d_log_alpha.data(), d_log_beta.data(), d_x.data()});
  }

  std::vector<T> gradients() const {
    std::vector<T> all;
    for (const auto* part : {&d_log_alpha_diag, &d_log_alpha, &d_log_beta, &d_x}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }

  std::vector<double> results() const {
    std::vector<double> all = widened(y);
    for (const A z : log_z) all.push_back(z);
    for (const double g : widened(gradients())) all.push_back(g);
    return all;
  }

  // Calls f(entry of the coefficients, row, column) for each coefficient of one head.
  template <typename F>
  void each_coefficient(size_t n, int64_t head, const F& f) const {
    const Sequence& s = sequences.list[n];
    const int64_t plane = s.batch * sizes.heads + head;
    for (int64_t i = 0; i < s.length; ++i) {
      f(plane * sizes.time + s.start + i, i, i);
      for (int64_t r = csr.row_ptr[i]; r < csr.row_ptr[i + 1]; ++r) {
        f(plane * reads.nnz + reads.first[n] + r, i, int64_t{csr.cols[r]});
      }
    }
  }

  void compare_with_reference() const {
    std::vector<double> e_y(x.size()), e_log_z(log_z.size()), e_diag(log_alpha_diag.size()),
        e_alpha(log_alpha.size()), e_beta(log_beta.size()), e_x(x.size());
    const auto in_diag = widened(log_alpha_diag), in_alpha = widened(log_alpha),
               in_beta = widened(log_beta), in_x = widened(x), in_grad = widened(grad_y),
               in_grad_z = widened(grad_log_z);
    for (size_t n = 0; n < sequences.list.size(); ++n) {
      const Sequence& s = sequences.list[n];
      for (int64_t h = 0; h < sizes.heads; ++h) {
        Matrix a(s.length, s.length), b = a;
        std::fill(a.data.begin(), a.data.end(), kAbsent);
        b = a;
        each_coefficient(n, h, [&](int64_t entry, int64_t i, int64_t j) {
          a(i, j) = i == j ? in_diag[entry] : in_alpha[entry];
          if (i != j) b(i, j) = in_beta[entry];
        });
        const auto cut = [&](const std::vector<double>& from, int64_t width) {
          return slice(from, sequences, s, sizes.heads, h, width);
        };
        const auto put = [&](const Matrix& from, std::vector<double>& to) {
          unslice(from, sequences, s, sizes.heads, h, to);
        };
        const Matrix mx = cut(in_x, sizes.value_width);
        const auto recurrence = reference::normalized_recurrence(a, b);
        put(recurrence.log_z, e_log_z);
        put(reference::glr(recurrence.weights.a, recurrence.weights.b, mx), e_y);
        const auto grads = reference::normalized_gradients(
            a, b, mx, cut(in_grad, sizes.value_width), cut(in_grad_z, 1));
        put(grads.x, e_x);
        each_coefficient(n, h, [&](int64_t entry, int64_t i, int64_t j) {
          (i == j ? e_diag : e_alpha)[entry] = grads.log_a(i, j);
          if (i != j) e_beta[entry] = grads.log_b(i, j);
        });
      }
    }
    std::vector<A> finite = log_z;
    for (size_t i = 0; i < finite.size(); ++i) {
      if (e_log_z[i] != kAbsent) continue;
      ASSERT_EQ(finite[i], kAbsent) << i;
      finite[i] = 0;
      e_log_z[i] = 0;
    }
    expect_close(finite, e_log_z, "log z");
    expect_close(y, e_y, "y");
    expect_close(d_log_alpha_diag, e_diag, "d log_alpha_diag");
    expect_close(d_log_alpha, e_alpha, "d log_alpha");
    expect_close(d_log_beta, e_beta, "d log_beta");
    expect_close(d_x, e_x, "d x");
  }
};

template <typename T>
class GlrNormalizedTest : public ::testing::Test {};
TYPED_TEST_SUITE(GlrNormalizedTest, StorageTypes);

TYPED_TEST(GlrNormalizedTest, MatchesTheReference) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Problem<TypeParam> problem(c);
    problem.run();
    problem.compare_with_reference();
  }
}

TYPED_TEST(GlrNormalizedTest, AbsentTermsMatchTheReference) {
  const TypeParam absent = static_cast<TypeParam>(static_cast<float>(kAbsent));
  for (const char* spec : {"k^2+1", "dense", "window(2)"}) {
    Problem<TypeParam> p({spec, 65, 20, 20, 1, 2, 2});
    // Every third coefficient, and all that rows 0 to 4 have: those rows are empty, and some of
    // their readers have nothing else.
    for (auto* part : {&p.log_alpha_diag, &p.log_alpha, &p.log_beta}) {
      for (size_t i = 0; i < part->size(); i += 3) (*part)[i] = absent;
    }
    for (int64_t h = 0; h < 2; ++h) {
      p.each_coefficient(0, h, [&](int64_t entry, int64_t i, int64_t j) {
        if (i >= 5) return;
        (i == j ? p.log_alpha_diag : p.log_alpha)[entry] = absent;
        if (i != j && i < 3) p.log_beta[entry] = absent;
      });
    }
    p.run();
    p.compare_with_reference();
    for (const double g : widened(p.gradients())) ASSERT_TRUE(std::isfinite(g));
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(p.log_z[2 * i], kAbsent);
      EXPECT_EQ(widened(p.y)[2 * i * 20], 0);
    }
  }
}

TYPED_TEST(GlrNormalizedTest, RowsMadeOnTheFlyGiveTheSameBits) {
  const Case c{"cached(k^2+1)", 100, 20, 20, 2, 3, 3};
  Problem<TypeParam> listed(c), made(c, 2, true);
  listed.run();
  made.run();
  EXPECT_TRUE(same_bits(listed.results(), made.results()));
}

TYPED_TEST(GlrNormalizedTest, SameBitsForAnyNumberOfThreads) {
  expect_same_for_any_threads([] {
    Problem<TypeParam> problem({"k^2+1", 100, 20, 20, 2, 3, 3});
    problem.run();
    return problem.results();
  });
}

TYPED_TEST(GlrNormalizedTest, LaterTokensAreNotSeen) {
  const Case c{"k^2+1", 65, 3, 3, 1, 1, 1};
  Problem<TypeParam> plain(c), changed(c);
  const int64_t token = 40, from = token * 3;
  const TypeParam huge = static_cast<TypeParam>(1e30f);
  std::fill(changed.x.begin() + from, changed.x.end(), huge);
  std::fill(changed.log_alpha_diag.begin() + token, changed.log_alpha_diag.end(), huge);
  for (auto* part : {&changed.log_alpha, &changed.log_beta}) {
    std::fill(part->begin() + changed.csr.row_ptr[token], part->end(), huge);
  }
  plain.forward();
  changed.forward();
  for (Problem<TypeParam>* p : {&plain, &changed}) {
    p->y.resize(from);
    p->log_z.resize(token);
  }
  EXPECT_TRUE(same_bits(plain.y, changed.y));
  EXPECT_TRUE(same_bits(plain.log_z, changed.log_z));
}

TYPED_TEST(GlrNormalizedTest, SkippedGradientsLeaveTheOthersAsTheyWere) {
  Problem<TypeParam> all({"2^k", 64, 20, 20, 1, 2, 2}), some({"2^k", 64, 20, 20, 1, 2, 2});
  all.run();
  some.run();
  some.d_x = unwritten<TypeParam>(some.x.size());
  glr_normalized_backward(some.inputs(), some.y.data(), some.grad_y.data(), some.grad_log_z.data(),
                          {nullptr, nullptr, nullptr, some.d_x.data()});
  EXPECT_TRUE(same_bits(some.d_x, all.d_x));
  some.d_log_beta = unwritten<TypeParam>(some.log_beta.size());
  glr_normalized_backward(some.inputs(), some.y.data(), some.grad_y.data(), some.grad_log_z.data(),
                          {nullptr, nullptr, some.d_log_beta.data(), nullptr});
  EXPECT_TRUE(same_bits(some.d_log_beta, all.d_log_beta));
}

TEST(GlrNormalized, GradientsMatchFiniteDifferences) {
  for (const Case& c :
       {Case{"k^2+1", 9, 3, 3, 2, 2, 2}, Case{"dense", 9, 3, 2, 1, 2, 2, {0, 4, 4, 9}}}) {
    Problem<double> p(c);
    p.run();
    const auto loss = [&] {
      glr_normalized(p.inputs(), p.y.data(), p.log_z.data());
      return inner_product(p.y, p.grad_y) + inner_product(p.log_z, p.grad_log_z);
    };
    expect_gradient(p.d_log_alpha_diag, finite_differences(p.log_alpha_diag, loss),
                    "log_alpha_diag");
    expect_gradient(p.d_log_alpha, finite_differences(p.log_alpha, loss), "log_alpha");
    expect_gradient(p.d_log_beta, finite_differences(p.log_beta, loss), "log_beta");
    expect_gradient(p.d_x, finite_differences(p.x, loss), "x");
  }
}

template <typename T>
std::vector<double> exponentials(const std::vector<T>& logs) {
  std::vector<double> out;
  for (const T x : logs) out.push_back(std::exp(static_cast<double>(x)));
  return out;
}

// The recurrence itself, in double: what a direct division would divide, or divide by.
template <typename T>
std::vector<double> undivided(const Problem<T>& p, const std::vector<double>& x) {
  const auto diag = exponentials(p.log_alpha_diag), alpha = exponentials(p.log_alpha),
             beta = exponentials(p.log_beta);
  std::vector<double> y = unwritten<double>(x.size());
  glr<double>({diag.data(), alpha.data(), beta.data(), x.data(), p.sizes.heads, p.sizes.value_width,
               p.sequences, p.rows, p.reads},
              y.data());
  return y;
}

TEST(GlrNormalized, IsTheRecurrenceDividedByTheRecurrenceOnOnes) {
  Problem<double> p({"k^2+1", 30, 4, 4, 1, 2, 2}, 1);
  p.forward();
  const auto y = undivided(p, p.x), z = undivided(p, std::vector<double>(p.x.size(), 1));
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(p.y[i], y[i] / z[i], 1e-13);
    EXPECT_NEAR(p.log_z[i / 4], std::log(z[i]), 1e-13);
  }
}

// Logarithms of +-50 over 10,000 tokens; log z reaches 500,000. The division overflows even double
// within 20 tokens.
TEST(GlrNormalized, FloatIsRightWhereTheDivisionOverflows) {
  constexpr int64_t kTime = 10000;
  // Direct and recurrent logarithms; 0: random up to 50.
  for (const auto& [spec, alpha, beta] : {std::tuple{"window(2)", 0, 0},
                                          {"k^2+1", 0, 0},
                                          {"window(2)", 50, 50},
                                          {"window(2)", -50, -50},
                                          {"window(2)", -50, 50},
                                          {"k^2+1", -50, 50}}) {
    SCOPED_TRACE(std::string(spec) + " " + std::to_string(alpha) + " " + std::to_string(beta));
    const Case c{spec, kTime, 4, 4, 1, 1, 1};
    Problem<float> p(c, 50);
    Problem<double> exact(c, 50);
    if (alpha != 0) {
      std::fill(p.log_alpha_diag.begin(), p.log_alpha_diag.end(), alpha);
      std::fill(p.log_alpha.begin(), p.log_alpha.end(), alpha);
      std::fill(p.log_beta.begin(), p.log_beta.end(), beta);
    }
    exact.log_alpha_diag = widened(p.log_alpha_diag);
    exact.log_alpha = widened(p.log_alpha);
    exact.log_beta = widened(p.log_beta);
    p.run();
    exact.run();
    if (beta == 50) {
      EXPECT_TRUE(std::isinf(undivided(p, std::vector<double>(p.x.size(), 1))[4 * 20]));
    }
    // Roundings add up along a chain of averages of the whole length, as a random walk.
    const auto expect_near = [&](const std::vector<float>& actual,
                                 const std::vector<double>& expected, const char* what) {
      double largest = 1;
      for (const double x : expected) largest = std::max(largest, std::abs(x));
      const double allowed = std::sqrt(kTime) * std::numeric_limits<float>::epsilon() * largest;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_TRUE(std::abs(actual[i] - expected[i]) <= allowed)
            << what << " entry " << i << ": " << actual[i] << " instead of " << expected[i];
      }
    };
    expect_near(p.y, exact.y, "y");
    expect_near(p.log_z, exact.log_z, "log z");
    expect_near(p.d_log_alpha_diag, exact.d_log_alpha_diag, "d log_alpha_diag");
    expect_near(p.d_log_alpha, exact.d_log_alpha, "d log_alpha");
    expect_near(p.d_log_beta, exact.d_log_beta, "d log_beta");
    expect_near(p.d_x, exact.d_x, "d x");
  }
}

}  // namespace
}  // namespace hopmix::kernels

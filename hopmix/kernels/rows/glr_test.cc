#include "hopmix/kernels/rows/glr.h"

#include <gtest/gtest.h>

#include <memory>

#include "hopmix/kernels/base/kernel_checks.h"
#include "hopmix/kernels/base/reference.h"
#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using reference::Matrix;
using namespace testing;  // NOLINT: the helpers of these tests

// One problem: inputs, outputs and gradients, all flat.
template <typename T>
struct Problem {
  Case sizes;
  Sequences sequences;
  Pattern pattern;
  Csr csr;
  Rows rows;
  ReadLayout reads;
  std::vector<T> alpha_diag, alpha, beta, x, grad_y, y;
  std::vector<T> d_alpha_diag, d_alpha, d_beta, d_x;

  explicit Problem(const Case& c, bool on_the_fly = false)
      : sizes(c),
        sequences(c.sequences()),
        pattern(c.pattern, sequences.longest()),
        csr(to_csr(pattern)),
        rows(on_the_fly ? Rows(pattern) : Rows(csr)),
        reads(rows, sequences) {
    int64_t largest = 1;
    for (int64_t i = 0; i < csr.rows(); ++i) {
      largest = std::max(largest, csr.row_ptr[i + 1] - csr.row_ptr[i]);
    }
    const int64_t planes = c.batch * c.heads, entries = planes * c.time * c.value_width;
    alpha_diag = random_values<T>(planes * c.time, 1);
    alpha = random_values<T>(planes * reads.nnz, 2);
    beta = random_values<T>(planes * reads.nnz, 3, -1.0 / largest, 1.0 / largest);
    x = random_values<T>(entries, 4);
    grad_y = random_values<T>(entries, 5);
  }
  Problem(const Problem&) = delete;

  GlrInputs<T> inputs() const {
    return {alpha_diag.data(), alpha.data(), beta.data(), x.data(), sizes.heads,
            sizes.value_width, sequences,    rows,        reads};
  }

  void run() { run(inputs()); }
  void run(const GlrInputs<T>& in) {
    y = unwritten<T>(x.size());
    glr(in, y.data());
    d_alpha_diag = unwritten<T>(alpha_diag.size());
    d_alpha = unwritten<T>(alpha.size());
    d_beta = unwritten<T>(beta.size());
    d_x = unwritten<T>(x.size());
    glr_backward(in, y.data(), grad_y.data(),
                 {d_alpha_diag.data(), d_alpha.data(), d_beta.data(), d_x.data()});
  }

  std::vector<T> results() const {
    std::vector<T> all;
    for (const auto* part : {&y, &d_alpha_diag, &d_alpha, &d_beta, &d_x}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }

  void compare_with_reference() const {
    std::vector<double> e_y(x.size()), e_diag(alpha_diag.size()), e_alpha(alpha.size()),
        e_beta(beta.size()), e_x(x.size());
    const auto in_diag = widened(alpha_diag), in_alpha = widened(alpha), in_beta = widened(beta);
    int64_t before = 0;  // reads of earlier sequences of the batch element
    for (size_t n = 0; n < sequences.list.size(); ++n) {
      const Sequence& s = sequences.list[n];
      if (sizes.bounds.empty()) before = 0;
      for (int64_t h = 0; h < sizes.heads; ++h) {
        const int64_t plane = s.batch * sizes.heads + h;
        Matrix a(s.length, s.length), b(s.length, s.length);
        for (int64_t i = 0; i < s.length; ++i) {
          a(i, i) = in_diag[plane * sizes.time + s.start + i];
          for (int64_t r = csr.row_ptr[i]; r < csr.row_ptr[i + 1]; ++r) {
            a(i, csr.cols[r]) = in_alpha[plane * reads.nnz + before + r];
            b(i, csr.cols[r]) = in_beta[plane * reads.nnz + before + r];
          }
        }
        const auto cut = [&](const std::vector<T>& from) {
          return slice(widened(from), sequences, s, sizes.heads, h, sizes.value_width);
        };
        unslice(reference::glr(a, b, cut(x)), sequences, s, sizes.heads, h, e_y);
        const auto grads = reference::glr_gradients(a, b, cut(x), cut(grad_y));
        unslice(grads.x, sequences, s, sizes.heads, h, e_x);
        for (int64_t i = 0; i < s.length; ++i) {
          e_diag[plane * sizes.time + s.start + i] = grads.a(i, i);
          for (int64_t r = csr.row_ptr[i]; r < csr.row_ptr[i + 1]; ++r) {
            e_alpha[plane * reads.nnz + before + r] = grads.a(i, csr.cols[r]);
            e_beta[plane * reads.nnz + before + r] = grads.b(i, csr.cols[r]);
          }
        }
      }
      before += csr.row_ptr[s.length];
    }
    expect_close(y, e_y, "y");
    expect_close(d_alpha_diag, e_diag, "d alpha_diag");
    expect_close(d_alpha, e_alpha, "d alpha");
    expect_close(d_beta, e_beta, "d beta");
    expect_close(d_x, e_x, "d x");
  }
};

template <typename T>
std::unique_ptr<Problem<T>> make(const Case& c, bool on_the_fly) {
  return std::make_unique<Problem<T>>(c, on_the_fly);
}

template <typename T>
class GlrTest : public ::testing::Test {};
TYPED_TEST_SUITE(GlrTest, StorageTypes);

TYPED_TEST(GlrTest, MatchesTheReference) {
  for (const Case& c : cases()) expect_reference(make<TypeParam>, c);
}

TYPED_TEST(GlrTest, EveryInstructionSetMatchesTheReference) {
  expect_reference_for_each_target(make<TypeParam>);
}

TYPED_TEST(GlrTest, SlotsUsedAgainMatchTheReference) {
  expect_reference_with_slots_used_again(make<TypeParam>);
}

TYPED_TEST(GlrTest, RowsMadeOnTheFlyGiveTheSameBits) {
  expect_same_bits_with_rows_on_the_fly(make<TypeParam>);
}

// One head with reads enough for a team, apart and, with slots used again, together.
TYPED_TEST(GlrTest, TeamsGiveTheSameBits) {
  for (const Case& c : {Case{"k^2+1", 2600, 1, 100}, Case{"window(40)", 2100, 1, 101}}) {
    for (const bool on_the_fly : {false, true}) {
      SCOPED_TRACE(::testing::PrintToString(c));
      expect_same_for_any_threads([&] {
        const auto problem = make<TypeParam>(c, on_the_fly);
        problem->run();
        return problem->results();
      });
    }
  }
}

TYPED_TEST(GlrTest, ReadingInPlaceGivesTheSameBits) {
  using T = TypeParam;
  expect_same_bits_in_place(make<T>, [](Problem<T>& p, int64_t behind) {
    const Placed<T> x(p.x, behind);
    GlrInputs<T> in = p.inputs();
    in.x = x.data();
    p.run(in);
    return p.results();
  });
}

TYPED_TEST(GlrTest, SameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_any_threads(make<TypeParam>);
}

TYPED_TEST(GlrTest, LaterTokensAreNotSeen) {
  const Case c{"k^2+1", 65, 3, 3, 1, 1, 1};
  Problem<TypeParam> plain(c), changed(c);
  const int64_t token = 40, from = token * 3;
  for (size_t i = from; i < changed.x.size(); ++i) changed.x[i] = static_cast<TypeParam>(1e30f);
  for (int64_t i = token; i < 65; ++i) changed.alpha_diag[i] = static_cast<TypeParam>(1e30f);
  plain.run();
  changed.run();
  plain.y.resize(from);
  changed.y.resize(from);
  EXPECT_TRUE(same_bits(plain.y, changed.y));
}

TYPED_TEST(GlrTest, SkippedGradientsLeaveTheOthersAsTheyWere) {
  Problem<TypeParam> all({"2^k", 64, 20, 20, 1, 2, 2}), some({"2^k", 64, 20, 20, 1, 2, 2});
  all.run();
  some.run();
  some.d_x = unwritten<TypeParam>(some.x.size());
  glr_backward(some.inputs(), some.y.data(), some.grad_y.data(),
               {nullptr, nullptr, nullptr, some.d_x.data()});
  EXPECT_TRUE(same_bits(some.d_x, all.d_x));
  some.d_beta = unwritten<TypeParam>(some.beta.size());
  glr_backward(some.inputs(), some.y.data(), some.grad_y.data(),
               {nullptr, nullptr, some.d_beta.data(), nullptr});
  EXPECT_TRUE(same_bits(some.d_beta, all.d_beta));
}

TEST(Glr, GradientsMatchFiniteDifferences) {
  for (const Case& c :
       {Case{"k^2+1", 9, 3, 3, 2, 2, 2}, Case{"dense", 9, 3, 2, 1, 2, 2, {0, 4, 4, 9}}}) {
    Problem<double> p(c);
    p.run();
    const auto loss = [&] {
      glr(p.inputs(), p.y.data());
      return inner_product(p.y, p.grad_y);
    };
    expect_gradient(p.d_alpha_diag, finite_differences(p.alpha_diag, loss), "alpha_diag");
    expect_gradient(p.d_alpha, finite_differences(p.alpha, loss), "alpha");
    expect_gradient(p.d_beta, finite_differences(p.beta, loss), "beta");
    expect_gradient(p.d_x, finite_differences(p.x, loss), "x");
  }
}

TEST(Glr, ThreeTokensByHand) {
  // y0 = 2*1 = 2; y1 = 3*10 + 5*1 + 7*2 = 49; y2 = 1*100 + (1*1 + 2*2) + (3*10 + 4*49) = 331.
  const Csr csr{{0, 0, 1, 3}, {0, 0, 1}};
  const std::vector<double> diag = {2, 3, 1}, alpha = {5, 1, 3}, beta = {7, 2, 4}, x = {1, 10, 100};
  std::vector<double> y = unwritten<double>(3);
  const Sequences sequences = Sequences::batched(1, 3);
  const Rows rows(csr);
  const ReadLayout reads(rows, sequences);
  glr<double>({diag.data(), alpha.data(), beta.data(), x.data(), 1, 1, sequences, rows, reads},
              y.data());
  EXPECT_EQ(y, (std::vector<double>{2, 49, 331}));
}

}  // namespace
}  // namespace hopmix::kernels

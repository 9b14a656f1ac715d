#include "hopmix/kernels/rows/glr_softmax.h"

#include <gtest/gtest.h>

#include <memory>

#include "hopmix/kernels/base/kernel_checks.h"
#include "hopmix/kernels/base/reference.h"
#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using reference::Matrix;
using namespace testing;  // NOLINT: the helpers of these tests

template <typename T>
struct Problem {
  Case sizes;
  Sequences sequences;
  Pattern pattern;
  Csr csr;
  Rows rows;
  double scale;
  bool gate_on_read;
  std::vector<T> q, k, v, d, d_self, g, grad_y, y;
  std::vector<T> d_q, d_k, d_v, d_d, d_d_self, d_g;

  explicit Problem(const Case& c, bool on_read = false, bool on_the_fly = false)
      : sizes(c),
        sequences(c.sequences()),
        pattern(c.pattern, sequences.longest()),
        csr(to_csr(pattern)),
        rows(on_the_fly ? Rows(pattern) : Rows(csr)),
        scale(1 / std::sqrt(static_cast<double>(c.key_width))),
        gate_on_read(on_read) {
    const int64_t tokens = c.batch * c.time;
    q = random_values<T>(tokens * c.heads * c.key_width, 1, -2, 2);
    k = random_values<T>(tokens * c.kv_heads * c.key_width, 2, -2, 2);
    v = random_values<T>(tokens * c.kv_heads * c.value_width, 3);
    d = random_values<T>(tokens * c.heads, 4, -2, 2);
    d_self = random_values<T>(tokens * c.heads, 5, -2, 2);
    g = random_values<T>(tokens * c.heads, 6, -2, 2);
    grad_y = random_values<T>(tokens * c.heads * c.value_width, 7);
  }
  Problem(const Problem&) = delete;

  GlrSoftmaxInputs<T> inputs() const {
    return {q.data(),        k.data(),
            v.data(),        d.data(),
            d_self.data(),   g.data(),
            sizes.heads,     sizes.kv_heads,
            sizes.key_width, sizes.value_width,
            scale,           gate_on_read,
            sequences,       rows};
  }

  void backward() { backward(inputs()); }
  void backward(const GlrSoftmaxInputs<T>& in) {
    d_q = unwritten<T>(q.size());
    d_k = unwritten<T>(k.size());
    d_v = unwritten<T>(v.size());
    d_d = unwritten<T>(d.size());
    d_d_self = unwritten<T>(d_self.size());
    d_g = unwritten<T>(g.size());
    glr_softmax_backward(
        in, y.data(), grad_y.data(),
        {d_q.data(), d_k.data(), d_v.data(), d_d.data(), d_d_self.data(), d_g.data()});
  }

  void run() {
    y = unwritten<T>(grad_y.size());
    glr_softmax(inputs(), y.data());
    backward();
  }

  std::vector<T> results() const {
    std::vector<T> all;
    for (const auto* part : {&y, &d_q, &d_k, &d_v, &d_d, &d_d_self, &d_g}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }

  void compare_with_reference() const {
    const auto in_q = widened(q), in_k = widened(k), in_v = widened(v), in_d = widened(d),
               in_d_self = widened(d_self), in_g = widened(g), in_grad = widened(grad_y);
    std::vector<double> e_y(y.size()), e_q(q.size()), e_k(k.size()), e_v(v.size()), e_d(d.size()),
        e_d_self(d_self.size()), e_g(g.size());
    const int64_t heads = sizes.heads, kv_heads = sizes.kv_heads;
    for (const Sequence& s : sequences.list) {
      const Matrix mask = mask_of(csr, s.length);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t kv = h / (heads / kv_heads);
        const auto cut = [&](const std::vector<double>& from, int64_t count, int64_t head,
                             int64_t width) {
          return slice(from, sequences, s, count, head, width);
        };
        const Matrix mq = cut(in_q, heads, h, sizes.key_width),
                     mk = cut(in_k, kv_heads, kv, sizes.key_width),
                     mv = cut(in_v, kv_heads, kv, sizes.value_width), md = cut(in_d, heads, h, 1),
                     md_self = cut(in_d_self, heads, h, 1), mg = cut(in_g, heads, h, 1),
                     mgrad = cut(in_grad, heads, h, sizes.value_width);
        const auto w = reference::joint_softmax(
            reference::softmax_logits(mq, mk, md, md_self, mg, scale, mask, gate_on_read));
        const auto put = [&](const Matrix& from, int64_t count, int64_t head,
                             std::vector<double>& to) {
          unslice(from, sequences, s, count, head, to);
        };
        put(reference::glr(w.a, w.b, mv), heads, h, e_y);
        const auto grads = reference::glr_softmax_gradients(mq, mk, mv, md, md_self, mg, scale,
                                                            mask, gate_on_read, mgrad);
        put(grads.q, heads, h, e_q);
        put(grads.k, kv_heads, kv, e_k);
        put(grads.v, kv_heads, kv, e_v);
        put(grads.d, heads, h, e_d);
        put(grads.d_self, heads, h, e_d_self);
        put(grads.g, heads, h, e_g);
      }
    }
    expect_close(y, e_y, "y");
    expect_close(d_q, e_q, "d q");
    expect_close(d_k, e_k, "d k");
    expect_close(d_v, e_v, "d v");
    expect_close(d_d, e_d, "d d");
    expect_close(d_d_self, e_d_self, "d d_self");
    expect_close(d_g, e_g, "d g");
  }

  void expect_gradients_by_differences() {
    const auto loss = [&] {
      glr_softmax(inputs(), y.data());
      return inner_product(y, grad_y);
    };
    run();
    expect_gradient(d_q, finite_differences(q, loss), "q");
    expect_gradient(d_k, finite_differences(k, loss), "k");
    expect_gradient(d_v, finite_differences(v, loss), "v");
    expect_gradient(d_d, finite_differences(d, loss), "d");
    expect_gradient(d_d_self, finite_differences(d_self, loss), "d_self");
    expect_gradient(d_g, finite_differences(g, loss), "g");
  }
};

template <typename T>
std::unique_ptr<Problem<T>> make(const Case& c, bool on_the_fly) {
  return std::make_unique<Problem<T>>(c, /*on_read=*/c.key_width % 2 == 0, on_the_fly);
}

template <typename T>
class GlrSoftmaxTest : public ::testing::Test {};
TYPED_TEST_SUITE(GlrSoftmaxTest, StorageTypes);

TYPED_TEST(GlrSoftmaxTest, MatchesTheReference) {
  for (const bool on_read : {false, true}) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(::testing::PrintToString(c) + (on_read ? " on read" : ""));
      Problem<TypeParam> problem(c, on_read);
      problem.run();
      problem.compare_with_reference();
    }
  }
}

TYPED_TEST(GlrSoftmaxTest, EveryInstructionSetMatchesTheReference) {
  expect_reference_for_each_target(make<TypeParam>);
}

TYPED_TEST(GlrSoftmaxTest, SlotsUsedAgainMatchTheReference) {
  expect_reference_with_slots_used_again(make<TypeParam>);
}

TYPED_TEST(GlrSoftmaxTest, RowsMadeOnTheFlyGiveTheSameBits) {
  expect_same_bits_with_rows_on_the_fly(make<TypeParam>);
}

TYPED_TEST(GlrSoftmaxTest, ReadingInPlaceGivesTheSameBits) {
  using T = TypeParam;
  expect_same_bits_in_place(make<T>, [](Problem<T>& p, int64_t behind) {
    const Placed<T> k(p.k, behind), v(p.v, behind);
    GlrSoftmaxInputs<T> in = p.inputs();
    in.k = k.data();
    in.v = v.data();
    p.y = unwritten<T>(p.grad_y.size());
    glr_softmax(in, p.y.data());
    p.backward(in);
    return p.results();
  });
}

TYPED_TEST(GlrSoftmaxTest, SameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_any_threads(make<TypeParam>);
}

TYPED_TEST(GlrSoftmaxTest, LaterTokensAreNotSeen) {
  for (const bool on_read : {false, true}) {
    const Case c{"k^2+1", 65, 3, 3, 1, 1, 1};
    Problem<TypeParam> plain(c, on_read), changed(c, on_read);
    const int64_t token = 40, from = token * 3;
    const TypeParam huge = static_cast<TypeParam>(1e18f);
    for (auto* input : {&changed.q, &changed.k, &changed.v}) {
      std::fill(input->begin() + from, input->end(), huge);
    }
    for (auto* input : {&changed.d, &changed.d_self, &changed.g}) {
      std::fill(input->begin() + token, input->end(), huge);
    }
    plain.run();
    changed.run();
    plain.y.resize(from);
    changed.y.resize(from);
    EXPECT_TRUE(same_bits(plain.y, changed.y));
  }
}

TYPED_TEST(GlrSoftmaxTest, NanShowsInWhatDependsOnIt) {
  using P = Problem<TypeParam>;
  for (const bool on_read : {false, true}) {
    const auto make_one = [&](const Case& c, bool on_the_fly) {
      return std::make_unique<P>(c, on_read, on_the_fly);
    };
    expect_nan_shows_where_it_should<P, TypeParam>(make_one, {"offsets(3,7,8,9,11)", 40, 3, 2}, 6,
                                                   true,
                                                   {{&P::q, 3, true, false},
                                                    {&P::k, 3, false, true},
                                                    {&P::v, 2, true, true},
                                                    {&P::d, 1, false, true},
                                                    {&P::d_self, 1, true, true},
                                                    {&P::g, 1, !on_read, on_read}});
    // Token 0 has the slot that fills up rows.
    expect_nan_shows_where_it_should<P, TypeParam>(
        make_one, {"offsets(3,7,8,9,11)", 40, 3, 2}, 0, true,
        {{&P::d, 1, false, true}, {&P::g, 1, false, on_read}});
  }
}

TYPED_TEST(GlrSoftmaxTest, HugeLogitsStayFiniteAndOutputsWithinTheValues) {
  for (const bool on_read : {false, true}) {
    Problem<TypeParam> problem({"dense", 65, 20, 12, 1, 2, 1}, on_read);
    for (auto* input : {&problem.q, &problem.k, &problem.d, &problem.d_self, &problem.g}) {
      for (auto& x : *input) {
        x = static_cast<TypeParam>(1e2f * static_cast<Accumulator<TypeParam>>(x));
      }
    }
    problem.run();  // scores of about +-10^4
    for (const double x : widened(problem.results())) ASSERT_TRUE(std::isfinite(x));
    for (const double x : widened(problem.y)) ASSERT_LE(std::abs(x), 1.001);
  }
}

TYPED_TEST(GlrSoftmaxTest, AbsentTermsWeighNothing) {
  const TypeParam absent = static_cast<TypeParam>(-std::numeric_limits<float>::infinity());
  for (const bool on_read : {false, true}) {
    // No outputs are read: attention over the pattern and the token itself. No term at all: 0.
    for (const bool all : {false, true}) {
      Problem<TypeParam> p({"k^2+1", 65, 20, 12, 1, 2, 1}, on_read);
      std::fill(p.g.begin(), p.g.end(), absent);
      if (all) {
        std::fill(p.d.begin(), p.d.end(), absent);
        std::fill(p.d_self.begin(), p.d_self.end(), absent);
      }
      p.run();
      p.compare_with_reference();
      for (const double x : widened(p.d_g)) ASSERT_EQ(x, 0);
      if (all) {
        for (const double x : widened(p.results())) ASSERT_EQ(x, 0);
      }
    }
  }
}

TYPED_TEST(GlrSoftmaxTest, SkippedGradientsLeaveTheOthersAsTheyWere) {
  for (const bool on_read : {false, true}) {
    const Case c{"2^k", 64, 20, 12, 1, 4, 2};
    Problem<TypeParam> all(c, on_read), some(c, on_read);
    all.run();
    some.run();
    some.d_v = unwritten<TypeParam>(some.v.size());
    some.d_g = unwritten<TypeParam>(some.g.size());
    glr_softmax_backward(some.inputs(), some.y.data(), some.grad_y.data(),
                         {nullptr, nullptr, some.d_v.data(), nullptr, nullptr, some.d_g.data()});
    EXPECT_TRUE(same_bits(some.d_v, all.d_v));
    EXPECT_TRUE(same_bits(some.d_g, all.d_g));
    some.d_k = unwritten<TypeParam>(some.k.size());
    glr_softmax_backward(some.inputs(), some.y.data(), some.grad_y.data(),
                         {nullptr, some.d_k.data(), nullptr, nullptr, nullptr, nullptr});
    EXPECT_TRUE(same_bits(some.d_k, all.d_k));
  }
}

TEST(GlrSoftmax, GradientsMatchFiniteDifferences) {
  for (const bool on_read : {false, true}) {
    for (const Case& c :
         {Case{"k^2+1", 9, 3, 2, 2, 4, 2}, Case{"dense", 9, 2, 3, 1, 2, 1, {0, 4, 4, 9}}}) {
      Problem<double>(c, on_read).expect_gradients_by_differences();
    }
  }
}

TEST(GlrSoftmax, TokenWithoutReadsIsItsOwnValue) {
  Problem<double> p({"offsets(7,11)", 20, 3, 2, 1, 1, 1});
  p.run();
  for (int64_t i = 0; i < 14; ++i) EXPECT_EQ(p.y[i], p.v[i]);
  for (const double x : p.results()) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace hopmix::kernels

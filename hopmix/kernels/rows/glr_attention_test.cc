#include "hopmix/kernels/rows/glr_attention.h"

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
  int64_t lists = 0, list_width = 0;
  std::vector<int32_t> retrieved;  // instead of the pattern if there are lists
  double scale;
  std::vector<T> q, k, v, gate, d, d_self, grad_y, y;
  std::vector<T> d_q, d_k, d_v, d_gate, d_d, d_d_self;

  explicit Problem(const Case& c, bool on_the_fly = false)
      : sizes(c),
        sequences(c.sequences()),
        pattern(c.pattern, sequences.longest()),
        csr(to_csr(pattern)),
        rows(on_the_fly ? Rows(pattern) : Rows(csr)),
        scale(1 / std::sqrt(static_cast<double>(c.key_width))) {
    const int64_t tokens = c.batch * c.time;
    q = random_values<T>(tokens * c.heads * c.key_width, 1, -2, 2);
    k = random_values<T>(tokens * c.kv_heads * c.key_width, 2, -2, 2);
    v = random_values<T>(tokens * c.kv_heads * c.value_width, 3);
    gate = random_values<T>(tokens * c.heads, 4, -1, 1);
    d = random_values<T>(tokens * c.heads, 5, 0, 1);
    d_self = random_values<T>(tokens * c.heads, 6, 0, 1);
    grad_y = random_values<T>(tokens * c.heads * c.value_width, 7);
  }
  explicit Problem(const ListCase& c) : Problem(c.sizes) {
    lists = c.lists;
    list_width = c.width;
    retrieved = random_lists(sequences, lists, list_width, /*strictly_earlier=*/true);
  }
  Problem(const Problem&) = delete;

  RowsOfHeads rows_of_heads() const {
    if (lists == 0) return rows;
    return {retrieved.data(), sizes.heads, lists, list_width, sequences};
  }

  // How often token i of query head h reads token j.
  Matrix reads(const Sequence& s, int64_t h) const {
    if (lists == 0) return mask_of(csr, s.length);
    return counts_of(retrieved, sequences, s, lists, h / (sizes.heads / lists), list_width);
  }

  GlrAttentionInputs<T> inputs() const {
    return {q.data(),      k.data(),    v.data(),       gate.data(),     d.data(),
            d_self.data(), sizes.heads, sizes.kv_heads, sizes.key_width, sizes.value_width,
            scale,         sequences,   rows_of_heads()};
  }

  void backward() { backward(inputs()); }
  void backward(const GlrAttentionInputs<T>& in) {
    d_q = unwritten<T>(q.size());
    d_k = unwritten<T>(k.size());
    d_v = unwritten<T>(v.size());
    d_gate = unwritten<T>(gate.size());
    d_d = unwritten<T>(d.size());
    d_d_self = unwritten<T>(d_self.size());
    glr_attention_backward(
        in, y.data(), grad_y.data(),
        {d_q.data(), d_k.data(), d_v.data(), d_gate.data(), d_d.data(), d_d_self.data()});
  }

  void run() {
    y = unwritten<T>(grad_y.size());
    glr_attention(inputs(), y.data());
    backward();
  }

  std::vector<T> results() const {
    std::vector<T> all;
    for (const auto* part : {&y, &d_q, &d_k, &d_v, &d_gate, &d_d, &d_d_self}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }

  void compare_with_reference() const {
    const auto in_q = widened(q), in_k = widened(k), in_v = widened(v), in_gate = widened(gate),
               in_d = widened(d), in_d_self = widened(d_self), in_g = widened(grad_y);
    std::vector<double> e_y(y.size()), e_q(q.size()), e_k(k.size()), e_v(v.size()),
        e_gate(gate.size()), e_d(d.size()), e_d_self(d_self.size());
    const int64_t heads = sizes.heads, kv_heads = sizes.kv_heads;
    for (const Sequence& s : sequences.list) {
      for (int64_t h = 0; h < heads; ++h) {
        const Matrix mask = reads(s, h);
        const int64_t g = h / (heads / kv_heads);
        const auto cut = [&](const std::vector<double>& from, int64_t count, int64_t head,
                             int64_t width) {
          return slice(from, sequences, s, count, head, width);
        };
        const Matrix mq = cut(in_q, heads, h, sizes.key_width),
                     mk = cut(in_k, kv_heads, g, sizes.key_width),
                     mv = cut(in_v, kv_heads, g, sizes.value_width),
                     mgate = cut(in_gate, heads, h, 1), md = cut(in_d, heads, h, 1),
                     md_self = cut(in_d_self, heads, h, 1),
                     mg = cut(in_g, heads, h, sizes.value_width);
        const auto c = reference::shared_coefficients(mq, mk, mgate, md, md_self, scale, mask);
        const auto put = [&](const Matrix& from, int64_t count, int64_t head,
                             std::vector<double>& to) {
          unslice(from, sequences, s, count, head, to);
        };
        put(reference::glr(c.a, c.b, mv), heads, h, e_y);
        const auto grads =
            reference::glr_attention_gradients(mq, mk, mv, mgate, md, md_self, scale, mask, mg);
        put(grads.q, heads, h, e_q);
        put(grads.k, kv_heads, g, e_k);
        put(grads.v, kv_heads, g, e_v);
        put(grads.gate, heads, h, e_gate);
        put(grads.d, heads, h, e_d);
        put(grads.d_self, heads, h, e_d_self);
      }
    }
    expect_close(y, e_y, "y");
    expect_close(d_q, e_q, "d q");
    expect_close(d_k, e_k, "d k");
    expect_close(d_v, e_v, "d v");
    expect_close(d_gate, e_gate, "d gate");
    expect_close(d_d, e_d, "d d");
    expect_close(d_d_self, e_d_self, "d d_self");
  }
};

template <typename T>
std::unique_ptr<Problem<T>> make(const Case& c, bool on_the_fly) {
  return std::make_unique<Problem<T>>(c, on_the_fly);
}

template <typename T>
class GlrAttentionTest : public ::testing::Test {};
TYPED_TEST_SUITE(GlrAttentionTest, StorageTypes);

TYPED_TEST(GlrAttentionTest, MatchesTheReference) {
  for (const Case& c : cases()) expect_reference(make<TypeParam>, c);
}

TYPED_TEST(GlrAttentionTest, EveryInstructionSetMatchesTheReference) {
  expect_reference_for_each_target(make<TypeParam>);
}

TYPED_TEST(GlrAttentionTest, SlotsUsedAgainMatchTheReference) {
  expect_reference_with_slots_used_again(make<TypeParam>);
}

TYPED_TEST(GlrAttentionTest, RowsMadeOnTheFlyGiveTheSameBits) {
  expect_same_bits_with_rows_on_the_fly(make<TypeParam>);
}

TYPED_TEST(GlrAttentionTest, ReadingInPlaceGivesTheSameBits) {
  using T = TypeParam;
  expect_same_bits_in_place(make<T>, [](Problem<T>& p, int64_t behind) {
    const Placed<T> k(p.k, behind);
    GlrAttentionInputs<T> in = p.inputs();
    in.k = k.data();
    p.y = unwritten<T>(p.grad_y.size());
    glr_attention(in, p.y.data());
    p.backward(in);
    return p.results();
  });
}

TYPED_TEST(GlrAttentionTest, SameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_any_threads(make<TypeParam>);
}

TYPED_TEST(GlrAttentionTest, WhatWasRetrievedMatchesTheReference) {
  for (const ListCase& c : list_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Problem<TypeParam> problem(c);
    problem.run();
    problem.compare_with_reference();
  }
}

TYPED_TEST(GlrAttentionTest, WhatWasRetrievedGivesTheSameBitsForAnyNumberOfThreads) {
  for (const ListCase& c : list_cases_for_threads()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    expect_same_for_any_threads([&] {
      Problem<TypeParam> problem(c);
      problem.run();
      return problem.results();
    });
  }
}

TYPED_TEST(GlrAttentionTest, LaterTokensAreNotSeen) {
  const Case c{"k^2+1", 65, 3, 3, 1, 1, 1};
  Problem<TypeParam> plain(c), changed(c);
  const int64_t token = 40, from = token * 3;
  const TypeParam huge = static_cast<TypeParam>(1e18f);
  for (auto* input : {&changed.q, &changed.k, &changed.v}) {
    std::fill(input->begin() + from, input->end(), huge);
  }
  for (auto* input : {&changed.gate, &changed.d, &changed.d_self}) {
    std::fill(input->begin() + token, input->end(), huge);
  }
  plain.run();
  changed.run();
  plain.y.resize(from);
  changed.y.resize(from);
  EXPECT_TRUE(same_bits(plain.y, changed.y));
}

TYPED_TEST(GlrAttentionTest, NanShowsInWhatDependsOnIt) {
  using P = Problem<TypeParam>;
  expect_nan_shows_where_it_should<P, TypeParam>(make<TypeParam>, {"offsets(3,7,8,9,11)", 40, 3, 2},
                                                 6, true,
                                                 {{&P::q, 3, true, false},
                                                  {&P::k, 3, false, true},
                                                  {&P::v, 2, true, true},
                                                  {&P::gate, 1, true, false},
                                                  {&P::d, 1, true, true},
                                                  {&P::d_self, 1, true, true}});
}

TYPED_TEST(GlrAttentionTest, HugeLogitsStayFinite) {
  Problem<TypeParam> problem({"dense", 65, 20, 12, 1, 2, 1});
  for (auto& x : problem.q)
    x = static_cast<TypeParam>(1e2f * static_cast<Accumulator<TypeParam>>(x));
  for (auto& x : problem.k)
    x = static_cast<TypeParam>(1e2f * static_cast<Accumulator<TypeParam>>(x));
  problem.run();  // logits of about +-10^4
  for (const double x : widened(problem.results())) ASSERT_TRUE(std::isfinite(x));
}

TYPED_TEST(GlrAttentionTest, SkippedGradientsLeaveTheOthersAsTheyWere) {
  const Case c{"2^k", 64, 20, 12, 1, 4, 2};
  Problem<TypeParam> all(c), some(c);
  all.run();
  some.run();
  some.d_v = unwritten<TypeParam>(some.v.size());
  some.d_gate = unwritten<TypeParam>(some.gate.size());
  glr_attention_backward(some.inputs(), some.y.data(), some.grad_y.data(),
                         {nullptr, nullptr, some.d_v.data(), some.d_gate.data(), nullptr, nullptr});
  EXPECT_TRUE(same_bits(some.d_v, all.d_v));
  EXPECT_TRUE(same_bits(some.d_gate, all.d_gate));
  some.d_k = unwritten<TypeParam>(some.k.size());
  glr_attention_backward(some.inputs(), some.y.data(), some.grad_y.data(),
                         {nullptr, some.d_k.data(), nullptr, nullptr, nullptr, nullptr});
  EXPECT_TRUE(same_bits(some.d_k, all.d_k));
}

TEST(GlrAttention, GradientsMatchFiniteDifferences) {
  for (const Case& c :
       {Case{"k^2+1", 9, 3, 2, 2, 4, 2}, Case{"dense", 9, 2, 3, 1, 2, 1, {0, 4, 4, 9}}}) {
    Problem<double> p(c);
    p.run();
    const auto loss = [&] {
      glr_attention(p.inputs(), p.y.data());
      return inner_product(p.y, p.grad_y);
    };
    expect_gradient(p.d_q, finite_differences(p.q, loss), "q");
    expect_gradient(p.d_k, finite_differences(p.k, loss), "k");
    expect_gradient(p.d_v, finite_differences(p.v, loss), "v");
    expect_gradient(p.d_gate, finite_differences(p.gate, loss), "gate");
    expect_gradient(p.d_d, finite_differences(p.d, loss), "d");
    expect_gradient(p.d_d_self, finite_differences(p.d_self, loss), "d_self");
  }
}

TEST(GlrAttention, TokenWithoutReadsIsItsOwnValue) {
  Problem<double> p({"offsets(7,11)", 20, 3, 2, 1, 1, 1});
  p.run();
  for (int64_t i = 0; i < 7; ++i) {
    for (int64_t c = 0; c < 2; ++c) {
      // z_i - d_i v_i rounds where d_self_i v_i alone would not.
      EXPECT_NEAR(p.y[2 * i + c], p.d_self[i] * p.v[2 * i + c], 1e-15);
    }
  }
  for (const double x : p.results()) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace hopmix::kernels

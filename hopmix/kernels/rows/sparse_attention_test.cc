#include "hopmix/kernels/rows/sparse_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  bool include_self;
  Sequences sequences;
  Pattern pattern;
  Csr csr;
  Rows rows;
  int64_t lists = 0, list_width = 0;
  std::vector<int32_t> retrieved;  // instead of the pattern if there are lists
  double scale;
  std::vector<T> q, k, v, grad_y, y, d_q, d_k, d_v;

  explicit Problem(const Case& c, bool self, bool on_the_fly = false)
      : sizes(c),
        include_self(self),
        sequences(c.sequences()),
        pattern(c.pattern, sequences.longest()),
        csr(to_csr(pattern)),
        rows(on_the_fly ? Rows(pattern) : Rows(csr)),
        scale(1 / std::sqrt(static_cast<double>(c.key_width))) {
    const int64_t tokens = c.batch * c.time;
    q = random_values<T>(tokens * c.heads * c.key_width, 1, -2, 2);
    k = random_values<T>(tokens * c.kv_heads * c.key_width, 2, -2, 2);
    v = random_values<T>(tokens * c.kv_heads * c.value_width, 3);
    grad_y = random_values<T>(tokens * c.heads * c.value_width, 4);
  }
  explicit Problem(const ListCase& c) : Problem(c.sizes, false) {
    lists = c.lists;
    list_width = c.width;
    retrieved = random_lists(sequences, lists, list_width, /*strictly_earlier=*/false);
  }
  Problem(const Problem&) = delete;

  RowsOfHeads rows_of_heads() const {
    if (lists == 0) return rows;
    return {retrieved.data(), sizes.heads, lists, list_width, sequences};
  }

  // How often token i of query head h reads token j.
  Matrix reads(const Sequence& s, int64_t h) const {
    if (lists == 0) return mask_of(csr, s.length, include_self);
    return counts_of(retrieved, sequences, s, lists, h / (sizes.heads / lists), list_width);
  }

  SparseAttentionInputs<T> inputs() const {
    return {q.data(),          k.data(), v.data(),     sizes.heads, sizes.kv_heads, sizes.key_width,
            sizes.value_width, scale,    include_self, sequences,   rows_of_heads()};
  }

  void run() { run(inputs()); }
  void run(const SparseAttentionInputs<T>& in) {
    y = unwritten<T>(grad_y.size());
    sparse_attention(in, y.data());
    d_q = unwritten<T>(q.size());
    d_k = unwritten<T>(k.size());
    d_v = unwritten<T>(v.size());
    sparse_attention_backward(in, grad_y.data(), {d_q.data(), d_k.data(), d_v.data()});
  }

  std::vector<T> results() const {
    std::vector<T> all;
    for (const auto* part : {&y, &d_q, &d_k, &d_v}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }

  void compare_with_reference() const {
    const auto in_q = widened(q), in_k = widened(k), in_v = widened(v), in_g = widened(grad_y);
    std::vector<double> e_y(y.size()), e_q(q.size()), e_k(k.size()), e_v(v.size());
    const int64_t heads = sizes.heads, kv_heads = sizes.kv_heads;
    for (const Sequence& s : sequences.list) {
      for (int64_t h = 0; h < heads; ++h) {
        const Matrix mask = reads(s, h);
        const int64_t g = h / (heads / kv_heads);
        const Matrix mq = slice(in_q, sequences, s, heads, h, sizes.key_width),
                     mk = slice(in_k, sequences, s, kv_heads, g, sizes.key_width),
                     mv = slice(in_v, sequences, s, kv_heads, g, sizes.value_width),
                     mg = slice(in_g, sequences, s, heads, h, sizes.value_width);
        const Matrix p = reference::masked_softmax(mq, mk, scale, mask);
        const auto grads = reference::masked_softmax_gradients(
            mq, mk, scale, p, reference::multiply(mg, reference::transpose(mv)));
        unslice(reference::multiply(p, mv), sequences, s, heads, h, e_y);
        unslice(grads.q, sequences, s, heads, h, e_q);
        unslice(grads.k, sequences, s, kv_heads, g, e_k);
        unslice(reference::multiply(reference::transpose(p), mg), sequences, s, kv_heads, g, e_v);
      }
    }
    expect_close(y, e_y, "y");
    expect_close(d_q, e_q, "d q");
    expect_close(d_k, e_k, "d k");
    expect_close(d_v, e_v, "d v");
  }
};

template <typename T>
std::unique_ptr<Problem<T>> make(const Case& c, bool on_the_fly) {
  return std::make_unique<Problem<T>>(c, /*self=*/c.time % 2 == 0, on_the_fly);
}

template <typename T>
class SparseAttentionTest : public ::testing::Test {};
TYPED_TEST_SUITE(SparseAttentionTest, StorageTypes);

TYPED_TEST(SparseAttentionTest, MatchesTheReference) {
  for (const Case& c : cases()) {
    for (const bool self : {false, true}) {
      if (c.time == 1000 && self) continue;  // the dense reference is slow; the smaller sizes do
      SCOPED_TRACE(::testing::PrintToString(c) + (self ? " self" : ""));
      Problem<TypeParam> problem(c, self);
      problem.run();
      problem.compare_with_reference();
    }
  }
}

TYPED_TEST(SparseAttentionTest, EveryInstructionSetMatchesTheReference) {
  expect_reference_for_each_target(make<TypeParam>);
}

TYPED_TEST(SparseAttentionTest, SlotsUsedAgainMatchTheReference) {
  expect_reference_with_slots_used_again(make<TypeParam>);
}

TYPED_TEST(SparseAttentionTest, RowsMadeOnTheFlyGiveTheSameBits) {
  expect_same_bits_with_rows_on_the_fly(make<TypeParam>);
}

TYPED_TEST(SparseAttentionTest, SameBitsForAnyNumberOfThreads) {
  expect_same_bits_for_any_threads(make<TypeParam>);
}

TYPED_TEST(SparseAttentionTest, ReadingInPlaceGivesTheSameBits) {
  using T = TypeParam;
  expect_same_bits_in_place(make<T>, [](Problem<T>& p, int64_t behind) {
    const Placed<T> k(p.k, behind), v(p.v, behind);
    SparseAttentionInputs<T> in = p.inputs();
    in.k = k.data();
    in.v = v.data();
    p.run(in);
    return p.results();
  });
}

TYPED_TEST(SparseAttentionTest, WhatWasRetrievedMatchesTheReference) {
  for (const ListCase& c : list_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    Problem<TypeParam> problem(c);
    problem.run();
    problem.compare_with_reference();
  }
}

TYPED_TEST(SparseAttentionTest, WhatWasRetrievedGivesTheSameBitsForAnyNumberOfThreads) {
  for (const ListCase& c : list_cases_for_threads()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    expect_same_for_any_threads([&] {
      Problem<TypeParam> problem(c);
      problem.run();
      return problem.results();
    });
  }
}

// One list for a group is the same list for each of its heads.
TYPED_TEST(SparseAttentionTest, ListsInCommonGiveTheBitsOfRepeatedOnes) {
  Problem<TypeParam> common(ListCase{{kNoPattern, 70, 20, 12, 2, 6, 2}, 2, 9}),
      own(ListCase{{kNoPattern, 70, 20, 12, 2, 6, 2}, 6, 9});
  for (int64_t row = 0; row < 2 * 70 * 6; ++row) {
    std::copy_n(common.retrieved.begin() + row / 3 * 9, 9, own.retrieved.begin() + row * 9);
  }
  common.run();
  own.run();
  EXPECT_TRUE(same_bits(common.results(), own.results()));
}

// Lists of a row in another order give another order of sums, but -1 between them gives none.
TYPED_TEST(SparseAttentionTest, AbsentEntriesMayStandAnywhere) {
  Problem<TypeParam> spread(ListCase{{kNoPattern, 70, 20, 12, 1, 2, 2}, 2, 9}),
      packed(ListCase{{kNoPattern, 70, 20, 12, 1, 2, 2}, 2, 9});
  for (int64_t row = 0; row < 70 * 2; ++row) {
    std::stable_partition(packed.retrieved.begin() + row * 9,
                          packed.retrieved.begin() + (row + 1) * 9,
                          [](int32_t j) { return j >= 0; });
  }
  spread.run();
  packed.run();
  EXPECT_TRUE(same_bits(spread.results(), packed.results()));
}

TYPED_TEST(SparseAttentionTest, LaterTokensAreNotSeen) {
  const Case c{"dense", 65, 3, 3, 1, 1, 1};
  Problem<TypeParam> plain(c, true), changed(c, true);
  const int64_t from = 40 * 3;
  for (auto* input : {&changed.q, &changed.k, &changed.v}) {
    std::fill(input->begin() + from, input->end(), static_cast<TypeParam>(1e18f));
  }
  plain.run();
  changed.run();
  plain.y.resize(from);
  changed.y.resize(from);
  EXPECT_TRUE(same_bits(plain.y, changed.y));
}

TYPED_TEST(SparseAttentionTest, NanShowsInWhatDependsOnIt) {
  using P = Problem<TypeParam>;  // of an even number of tokens: they read themselves
  expect_nan_shows_where_it_should<P, TypeParam>(
      make<TypeParam>, {"offsets(3,7,8,9,11)", 40, 3, 2}, 6, false,
      {{&P::q, 3, true, false}, {&P::k, 3, true, true}, {&P::v, 2, true, true}});
}

TYPED_TEST(SparseAttentionTest, HugeLogitsStayFinite) {
  Problem<TypeParam> problem({"dense", 65, 20, 12, 1, 2, 1}, false);
  for (auto* input : {&problem.q, &problem.k}) {
    for (auto& x : *input)
      x = static_cast<TypeParam>(1e2f * static_cast<Accumulator<TypeParam>>(x));
  }
  problem.run();  // logits of about +-10^4; the first row is empty
  for (const double x : widened(problem.results())) ASSERT_TRUE(std::isfinite(x));
}

TEST(SparseAttention, GradientsMatchFiniteDifferences) {
  for (const Case& c :
       {Case{"k^2+1", 9, 3, 2, 2, 4, 2}, Case{"dense", 9, 2, 3, 1, 2, 1, {0, 4, 4, 9}}}) {
    Problem<double> p(c, c.batch == 2);
    p.run();
    const auto loss = [&] {
      sparse_attention(p.inputs(), p.y.data());
      return inner_product(p.y, p.grad_y);
    };
    expect_gradient(p.d_q, finite_differences(p.q, loss), "q");
    expect_gradient(p.d_k, finite_differences(p.k, loss), "k");
    expect_gradient(p.d_v, finite_differences(p.v, loss), "v");
  }
}

TEST(SparseAttention, TokenWithoutReadsIsZero) {
  Problem<double> p({"offsets(7,11)", 20, 3, 2, 1, 1, 1}, false);
  p.run();
  for (int64_t i = 0; i < 7 * 2; ++i) EXPECT_EQ(p.y[i], 0);
  for (int64_t i = 0; i < 7 * 3; ++i) EXPECT_EQ(p.d_q[i], 0);
}

TEST(SparseAttention, GradientsOnWhatWasRetrievedMatchFiniteDifferences) {
  for (const ListCase& c : {ListCase{{kNoPattern, 9, 3, 2, 2, 4, 2}, 4, 3},
                            ListCase{{kNoPattern, 9, 2, 3, 1, 4, 2, {0, 4, 4, 9}}, 2, 5}}) {
    Problem<double> p(c);
    p.run();
    const auto loss = [&] {
      sparse_attention(p.inputs(), p.y.data());
      return inner_product(p.y, p.grad_y);
    };
    expect_gradient(p.d_q, finite_differences(p.q, loss), "q");
    expect_gradient(p.d_k, finite_differences(p.k, loss), "k");
    expect_gradient(p.d_v, finite_differences(p.v, loss), "v");
  }
}

TEST(SparseAttention, EmptyListsGiveZeroAndZeroGradients) {
  Problem<double> p(ListCase{{kNoPattern, 20, 3, 2, 1, 1, 1}, 1, 4});
  p.run();
  for (int64_t i = 6; i < 20; i += 7) {  // random_lists() leaves these empty
    for (int64_t c = 0; c < 2; ++c) EXPECT_EQ(p.y[i * 2 + c], 0);
    for (int64_t c = 0; c < 3; ++c) EXPECT_EQ(p.d_q[i * 3 + c], 0);
  }
}

// With equal keys a token's output counts what it reads: one-hot values, window(3) and self.
TEST(SparseAttention, WindowReadsExactlyItsTokens) {
  const int64_t n = 10;
  Problem<double> p({"window(3)", n, 1, n, 1, 1, 1}, true);
  std::fill(p.k.begin(), p.k.end(), 0.0);
  for (int64_t i = 0; i < n * n; ++i) p.v[i] = i % (n + 1) == 0;
  p.run();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t first = std::max<int64_t>(0, i - 3);
    for (int64_t j = 0; j < n; ++j) {
      const bool reads = first <= j && j <= i;
      EXPECT_EQ(p.y[i * n + j], reads ? 1.0 / static_cast<double>(i - first + 1) : 0.0);
    }
  }
}

}  // namespace
}  // namespace hopmix::kernels

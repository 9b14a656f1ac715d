#include "hopmix/kernels/rows/retrieved_recurrence.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hopmix/kernels/base/reference.h"
#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using reference::Matrix;
using namespace testing;  // NOLINT: the helpers of these tests

template <typename T>
struct Problem {
  Case sizes;
  int64_t lists, list_width, hops;
  Sequences sequences;
  std::vector<int32_t> retrieved;
  double scale;
  std::vector<T> q, k, v, gate, grad_z, z, d_q, d_k, d_v, d_gate;

  Problem(const ListCase& c, int64_t hop_count)
      : sizes(c.sizes),
        lists(c.lists),
        list_width(c.width),
        hops(hop_count),
        sequences(sizes.sequences()),
        retrieved(random_lists(sequences, lists, list_width, /*strictly_earlier=*/true)),
        scale(1 / std::sqrt(static_cast<double>(sizes.key_width))) {
    const int64_t tokens = sizes.batch * sizes.time;
    q = random_values<T>(tokens * sizes.heads * sizes.key_width, 1, -2, 2);
    k = random_values<T>(tokens * sizes.kv_heads * sizes.key_width, 2, -2, 2);
    v = random_values<T>(tokens * sizes.kv_heads * sizes.value_width, 3);
    gate = random_values<T>(tokens * sizes.heads, 4, -1, 1);
    grad_z = random_values<T>(tokens * sizes.heads * (hops + 1) * sizes.value_width, 5);
  }
  Problem(const Problem&) = delete;

  RetrievedRecurrenceInputs<T> inputs() const {
    return {q.data(),
            k.data(),
            v.data(),
            gate.data(),
            sizes.heads,
            sizes.kv_heads,
            sizes.key_width,
            sizes.value_width,
            hops,
            scale,
            sequences,
            {retrieved.data(), sizes.heads, lists, list_width, sequences}};
  }

  void run() {
    z = unwritten<T>(grad_z.size());
    retrieved_recurrence(inputs(), z.data());
    d_q = unwritten<T>(q.size());
    d_k = unwritten<T>(k.size());
    d_v = unwritten<T>(v.size());
    d_gate = unwritten<T>(gate.size());
    retrieved_recurrence_backward(inputs(), grad_z.data(),
                                  {d_q.data(), d_k.data(), d_v.data(), d_gate.data()});
  }

  std::vector<T> results() const {
    std::vector<T> all;
    for (const auto* part : {&z, &d_q, &d_k, &d_v, &d_gate}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }

  void compare_with_reference() const {
    const auto in_q = widened(q), in_k = widened(k), in_v = widened(v), in_gate = widened(gate),
               in_g = widened(grad_z);
    std::vector<double> e_z(z.size()), e_q(q.size()), e_k(k.size()), e_v(v.size()),
        e_gate(gate.size());
    const int64_t heads = sizes.heads, kv_heads = sizes.kv_heads, blocks = hops + 1;
    for (const Sequence& s : sequences.list) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t g = h / (heads / kv_heads);
        const Matrix mask =
                         counts_of(retrieved, sequences, s, lists, h / (heads / lists), list_width),
                     mq = slice(in_q, sequences, s, heads, h, sizes.key_width),
                     mk = slice(in_k, sequences, s, kv_heads, g, sizes.key_width),
                     mv = slice(in_v, sequences, s, kv_heads, g, sizes.value_width),
                     mgate = slice(in_gate, sequences, s, heads, h, 1);
        const Matrix p = reference::masked_softmax(mq, mk, scale, mask);
        const std::vector<Matrix> states = reference::retrieved_recurrence(p, mgate, mv, hops);
        std::vector<Matrix> mg;  // block r of head h is head h blocks + r of a larger tensor
        for (int64_t r = 0; r < blocks; ++r) {
          mg.push_back(
              slice(in_g, sequences, s, heads * blocks, h * blocks + r, sizes.value_width));
          unslice(states[r], sequences, s, heads * blocks, h * blocks + r, e_z);
        }
        const auto grads =
            reference::retrieved_recurrence_gradients(mq, mk, mv, mgate, scale, mask, mg);
        unslice(grads.q, sequences, s, heads, h, e_q);
        unslice(grads.k, sequences, s, kv_heads, g, e_k);
        unslice(grads.v, sequences, s, kv_heads, g, e_v);
        unslice(grads.gate, sequences, s, heads, h, e_gate);
      }
    }
    expect_close(z, e_z, "z");
    expect_close(d_q, e_q, "d q");
    expect_close(d_k, e_k, "d k");
    expect_close(d_v, e_v, "d v");
    expect_close(d_gate, e_gate, "d gate");
  }
};

template <typename T>
void expect_reference(const ListCase& c, int64_t hops) {
  SCOPED_TRACE(::testing::PrintToString(c) + " hops " + std::to_string(hops));
  Problem<T> problem(c, hops);
  problem.run();
  problem.compare_with_reference();
}

template <typename T>
class RetrievedRecurrenceTest : public ::testing::Test {};
TYPED_TEST_SUITE(RetrievedRecurrenceTest, StorageTypes);

TYPED_TEST(RetrievedRecurrenceTest, MatchesTheReference) {
  for (const ListCase& c : list_cases()) {
    for (const int64_t hops : {1, 2, 4}) {
      if (c.sizes.time < 1000 || hops == 2) expect_reference<TypeParam>(c, hops);
    }
  }
}

TYPED_TEST(RetrievedRecurrenceTest, EveryInstructionSetMatchesTheReference) {
  for_each_target([&] {
    for (const int64_t width : {1, 15, 16, 17, 64, 65}) {
      expect_reference<TypeParam>({{kNoPattern, 70, width, width + 1, 1, 2, 1}, 2, 5}, 3);
    }
  });
}

TYPED_TEST(RetrievedRecurrenceTest, SameBitsForAnyNumberOfThreads) {
  for (const ListCase& c : list_cases_for_threads()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    expect_same_for_any_threads([&] {
      Problem<TypeParam> problem(c, 3);
      problem.run();
      return problem.results();
    });
  }
}

TYPED_TEST(RetrievedRecurrenceTest, LaterTokensAreNotSeen) {
  const ListCase c{{kNoPattern, 65, 3, 3, 1, 1, 1}, 1, 4};
  Problem<TypeParam> plain(c, 3), changed(c, 3);
  const int64_t token = 40;
  const auto huge = static_cast<TypeParam>(1e18f);
  for (auto* input : {&changed.q, &changed.k, &changed.v}) {
    std::fill(input->begin() + token * 3, input->end(), huge);
  }
  std::fill(changed.gate.begin() + token, changed.gate.end(), huge);
  std::fill(changed.retrieved.begin() + token * 4, changed.retrieved.end(), 0);
  plain.run();
  changed.run();
  plain.z.resize(token * 4 * 3);
  changed.z.resize(token * 4 * 3);
  EXPECT_TRUE(same_bits(plain.z, changed.z));
}

TYPED_TEST(RetrievedRecurrenceTest, RowsWithoutEntriesEndAfterTheirValue) {
  Problem<TypeParam> p({{kNoPattern, 20, 3, 2, 1, 1, 1}, 1, 4}, 2);
  p.run();
  for (const int64_t i : {0, 6, 13}) {  // random_lists() leaves these empty
    for (int64_t c = 0; c < 6; ++c) {
      EXPECT_EQ(static_cast<double>(widened(p.z)[i * 6 + c]), c < 2 ? widened(p.v)[i * 2 + c] : 0);
    }
    EXPECT_EQ(widened(p.d_gate)[i], 0);
  }
  for (const double x : widened(p.results())) EXPECT_TRUE(std::isfinite(x));
}

TYPED_TEST(RetrievedRecurrenceTest, SkippedGradientsLeaveTheOthersAsTheyWere) {
  const ListCase c{{kNoPattern, 64, 20, 12, 1, 4, 2}, 2, 6};
  Problem<TypeParam> all(c, 3), some(c, 3);
  all.run();
  const auto expect = [&](std::vector<TypeParam> Problem<TypeParam>::*which, auto member) {
    (some.*which) = unwritten<TypeParam>((all.*which).size());
    RetrievedRecurrenceGradients<TypeParam> out;
    out.*member = (some.*which).data();
    retrieved_recurrence_backward(some.inputs(), some.grad_z.data(), out);
    EXPECT_TRUE(same_bits(some.*which, all.*which));
  };
  using Out = RetrievedRecurrenceGradients<TypeParam>;
  using P = Problem<TypeParam>;
  expect(&P::d_q, &Out::q);
  expect(&P::d_k, &Out::k);
  expect(&P::d_v, &Out::v);
  expect(&P::d_gate, &Out::gate);
}

TYPED_TEST(RetrievedRecurrenceTest, HugeLogitsStayFinite) {
  Problem<TypeParam> problem({{kNoPattern, 65, 20, 12, 1, 2, 1}, 2, 9}, 2);
  for (auto* input : {&problem.q, &problem.k}) {
    for (auto& x : *input)
      x = static_cast<TypeParam>(1e2f * static_cast<Accumulator<TypeParam>>(x));
  }
  problem.run();  // logits of about +-10^4
  for (const double x : widened(problem.results())) ASSERT_TRUE(std::isfinite(x));
}

TEST(RetrievedRecurrence, GradientsMatchFiniteDifferences) {
  for (const ListCase& c : {ListCase{{kNoPattern, 9, 3, 2, 2, 4, 2}, 4, 3},
                            ListCase{{kNoPattern, 9, 2, 3, 1, 4, 2, {0, 4, 4, 9}}, 2, 5}}) {
    Problem<double> p(c, 3);
    p.run();
    const auto loss = [&] {
      retrieved_recurrence(p.inputs(), p.z.data());
      return inner_product(p.z, p.grad_z);
    };
    expect_gradient(p.d_q, finite_differences(p.q, loss), "q");
    expect_gradient(p.d_k, finite_differences(p.k, loss), "k");
    expect_gradient(p.d_v, finite_differences(p.v, loss), "v");
    expect_gradient(p.d_gate, finite_differences(p.gate, loss), "gate");
  }
}

}  // namespace
}  // namespace hopmix::kernels

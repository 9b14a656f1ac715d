#include "hopmix/kernels/decode/matrix_step.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

enum class Gate { kNone, kHead, kChannel };

struct Shape {
  int64_t batch, heads, kv_heads, key_width, value_width;
  Gate gate = Gate::kHead;
  bool corrects = true, starts = false;
  std::vector<int64_t> bounds = {};
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B" << s.batch << " H" << s.heads << " G" << s.kv_heads << " DK" << s.key_width
             << " DV" << s.value_width << " gate " << static_cast<int>(s.gate)
             << (s.corrects ? " delta" : "") << (s.starts ? " without a state" : "")
             << (s.bounds.empty() ? "" : " packed");
}

/// Every form at these sizes.
std::vector<Shape> forms(Shape s) {
  std::vector<Shape> all;
  for (const Gate gate : {Gate::kNone, Gate::kHead, Gate::kChannel}) {
    for (const bool corrects : {false, true}) {
      for (const bool starts : {false, true}) {
        s.gate = gate;
        s.corrects = corrects;
        s.starts = starts;
        all.push_back(s);
      }
    }
  }
  return all;
}

template <typename T>
struct Problem {
  using A = Accumulator<T>;
  static constexpr double kScale = 0.7;
  Shape shape;
  Sequences sequences;
  std::vector<T> q, k, v, log_decay, beta, o;
  std::vector<A> before, state;

  explicit Problem(const Shape& s)
      : shape(s),
        sequences(s.bounds.empty() ? Sequences::batched(s.batch, 1) : Sequences::packed(s.bounds)) {
    const int64_t tokens = sequences.tokens();
    q = random_values<T>(tokens * s.heads * s.key_width, 1);
    k = random_values<T>(tokens * s.kv_heads * s.key_width, 2, -0.3, 0.3);
    v = random_values<T>(tokens * s.kv_heads * s.value_width, 3);
    const int64_t gates = s.gate == Gate::kChannel ? s.key_width : 1;
    log_decay = random_values<T>(tokens * s.heads * gates, 4, -2, 0);
    beta = random_values<T>(tokens * s.heads, 5, 0, 1);
    before = random_values<A>(sequences.count() * state_size() * s.heads, 6);
  }

  int64_t state_size() const { return shape.key_width * shape.value_width; }

  void run(bool in_place = false) {
    o = unwritten<T>(sequences.tokens() * shape.heads * shape.value_width);
    state = in_place ? before : unwritten<A>(before.size());
    matrix_step<T>(
        {q.data(), k.data(), v.data(), shape.gate == Gate::kNone ? nullptr : log_decay.data(),
         shape.gate == Gate::kChannel, shape.corrects ? beta.data() : nullptr,
         shape.starts ? nullptr
         : in_place   ? state.data()
                      : before.data(),
         shape.heads, shape.kv_heads, shape.key_width, shape.value_width, kScale, sequences},
        o.data(), state.data());
  }

  std::vector<double> results() const {
    std::vector<double> all = widened(o);
    all.insert(all.end(), state.begin(), state.end());
    return all;
  }

  // Head by head; of other sequences than those of one token nothing was written.
  void compare_with_reference() const {
    const auto wide_q = widened(q), wide_k = widened(k), wide_v = widened(v);
    const auto gates = widened(log_decay), betas = widened(beta), states = widened(before);
    for (int64_t n = 0; n < sequences.count(); ++n) {
      const Sequence& s = sequences.list[n];
      for (int64_t head = 0; head < shape.heads; ++head) {
        const int64_t at = (n * shape.heads + head) * state_size();
        const std::vector<A> after(state.begin() + at, state.begin() + at + state_size());
        if (s.length != 1) {
          EXPECT_TRUE(same_bits(after, unwritten<A>(state_size())));
          continue;
        }
        const int64_t kv_head = head * shape.kv_heads / shape.heads;
        const int64_t token = sequences.first_token(s) * shape.heads + head;
        reference::MatrixStep step{
            slice(wide_q, sequences, s, shape.heads, head, shape.key_width),
            slice(wide_k, sequences, s, shape.kv_heads, kv_head, shape.key_width),
            slice(wide_v, sequences, s, shape.kv_heads, kv_head, shape.value_width),
            reference::Matrix(shape.key_width, 1),
            reference::Matrix(shape.key_width, shape.value_width)};
        for (int64_t c = 0; c < shape.key_width; ++c) {
          const int64_t channel =
              shape.gate == Gate::kChannel ? token * shape.key_width + c : token;
          step.log_decay.data[c] = shape.gate == Gate::kNone ? 0 : gates[channel];
        }
        if (!shape.starts) std::copy_n(states.begin() + at, state_size(), step.state.data.begin());
        const auto expected =
            reference::matrix_step(step, kScale, shape.corrects ? &betas[token] : nullptr);
        const auto row = o.begin() + token * shape.value_width;
        expect_close(std::vector<T>(row, row + shape.value_width), expected.o.data, "o");
        expect_close(after, expected.state.data, "state");
      }
    }
  }
};

template <typename T>
class MatrixStepTest : public ::testing::Test {};
TYPED_TEST_SUITE(MatrixStepTest, StorageTypes);

template <typename T>
void expect_reference(const Shape& s) {
  SCOPED_TRACE(::testing::PrintToString(s));
  Problem<T> problem(s);
  problem.run();
  problem.compare_with_reference();
}

TYPED_TEST(MatrixStepTest, EveryInstructionSetMatchesTheReference) {
  for_each_target([] {
    for (const int64_t width : {1, 3, 15, 16, 17, 20, 33, 64, 100, 128}) {
      for (const Shape& s : forms({2, 4, 2, width, width + 1})) expect_reference<TypeParam>(s);
    }
    for (const Shape& s : forms({1, 1, 1, 5, 200})) expect_reference<TypeParam>(s);
  });
}

TYPED_TEST(MatrixStepTest, OfPackedSequencesThoseOfOneToken) {
  for (const Shape& s : forms({1, 6, 2, 20, 12})) {
    Shape packed = s;
    packed.bounds = {0, 0, 1, 34, 34, 35, 70, 71};
    expect_reference<TypeParam>(packed);
  }
}

// Also where the last columns of a row overlap others, which are new by then.
TYPED_TEST(MatrixStepTest, InPlaceToTheSameBits) {
  for_each_target([] {
    for (const int64_t width : {1, 3, 15, 16, 17, 20, 33, 64, 65, 100}) {
      for (const Shape& s : forms({2, 4, 2, 20, width})) {
        if (s.starts) continue;
        Problem<TypeParam> elsewhere(s), here(s);
        elsewhere.run();
        here.run(/*in_place=*/true);
        EXPECT_TRUE(same_bits(here.state, elsewhere.state)) << ::testing::PrintToString(s);
        EXPECT_TRUE(same_bits(here.o, elsewhere.o)) << ::testing::PrintToString(s);
      }
    }
  });
}

TYPED_TEST(MatrixStepTest, SameBitsForAnyNumberOfThreads) {
  for (const Shape& s : forms({2, 6, 2, 300, 300})) {
    expect_same_for_any_threads([&] {
      Problem<TypeParam> problem(s);
      problem.run();
      return problem.results();
    });
  }
}

// e^-inf = 0 forgets; a gate of NaN shows, in a state that is not there too.
TYPED_TEST(MatrixStepTest, GatesThatAreNotFinite) {
  using T = TypeParam;
  for (const Shape& s : forms({1, 1, 1, 5, 20})) {
    if (s.gate == Gate::kNone) continue;
    Problem<T> forgets(s), nothing(s), unknown(s);
    std::fill(forgets.log_decay.begin(), forgets.log_decay.end(),
              static_cast<T>(-std::numeric_limits<float>::infinity()));
    nothing.shape.starts = true;
    unknown.log_decay = unwritten<T>(unknown.log_decay.size());
    forgets.run();
    nothing.run();
    unknown.run();
    for (size_t i = 0; i < nothing.results().size(); ++i) {
      ASSERT_EQ(forgets.results()[i], nothing.results()[i]);
      ASSERT_TRUE(std::isnan(unknown.results()[i]));
    }
  }
}

}  // namespace
}  // namespace hopmix::kernels

#include "hopmix/kernels/decode/attention_step.h"

#include <gtest/gtest.h>

#include <numeric>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

struct Shape {
  int64_t batch, reads, heads, kv_heads, key_width, value_width;
  bool listed = false, own = false;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B" << s.batch << " R" << s.reads << " H" << s.heads << " G" << s.kv_heads << " DK"
             << s.key_width << " DV" << s.value_width << (s.listed ? " listed" : "")
             << (s.own ? " with its own" : "");
}

// Slots that nothing reads hold NaN.
template <typename T>
struct Problem {
  static constexpr double kScale = 0.7;
  static constexpr int64_t kUnread = 5;
  Shape shape;
  int64_t slots;
  std::vector<int32_t> list;
  std::vector<T> q, k, v, own_k, own_v, y;

  explicit Problem(const Shape& s) : shape(s), slots(s.reads + kUnread), list(s.reads) {
    std::iota(list.begin(), list.end(), 0);
    if (s.listed) {
      std::vector<int32_t> all(slots);
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), std::mt19937(3));
      std::copy_n(all.begin(), s.reads, list.begin());
    }
    q = random_values<T>(s.batch * s.heads * s.key_width, 1);
    k = held(2, s.key_width);
    v = held(3, s.value_width);
    own_k = random_values<T>(s.batch * s.kv_heads * s.key_width, 4);
    own_v = random_values<T>(s.batch * s.kv_heads * s.value_width, 5);
  }

  std::vector<T> held(int seed, int64_t width) const {
    const int64_t row = shape.kv_heads * width;
    const std::vector<T> values = random_values<T>(shape.batch * slots * row, seed);
    std::vector<T> out = unwritten<T>(values.size());
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (const int32_t slot : list) {
        const int64_t at = (b * slots + slot) * row;
        std::copy_n(values.begin() + at, row, out.begin() + at);
      }
    }
    return out;
  }

  // `off` the cache line by so many entries.
  void run(int64_t off = 0) {
    std::vector<T> keys = k, values = v;
    keys.insert(keys.begin(), off, T{});
    values.insert(values.begin(), off, T{});
    y = unwritten<T>(shape.batch * shape.heads * shape.value_width);
    attention_step<T>({.q = q.data(),
                       .k = keys.data() + off,
                       .v = values.data() + off,
                       .slots = shape.listed ? list.data() : nullptr,
                       .own_k = shape.own ? own_k.data() : nullptr,
                       .own_v = shape.own ? own_v.data() : nullptr,
                       .batch = shape.batch,
                       .reads = shape.reads,
                       .heads = shape.heads,
                       .kv_heads = shape.kv_heads,
                       .key_width = shape.key_width,
                       .value_width = shape.value_width,
                       .k_stride = slots * shape.kv_heads * shape.key_width,
                       .v_stride = slots * shape.kv_heads * shape.value_width,
                       .scale = kScale},
                      y.data());
  }

  // By the definition, in double.
  std::vector<double> expected() const {
    const auto wide_q = widened(q), wide_k = widened(k), wide_v = widened(v);
    const auto wide_own_k = widened(own_k), wide_own_v = widened(own_v);
    std::vector<double> out;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        const int64_t g = h * shape.kv_heads / shape.heads;
        reference::Matrix query(1, shape.key_width), keys(shape.reads + shape.own, shape.key_width),
            values(shape.reads + shape.own, shape.value_width);
        const auto row = [&](const std::vector<double>& x, int64_t r, int64_t width) {
          return x.begin() + ((b * slots + list[r]) * shape.kv_heads + g) * width;
        };
        std::copy_n(wide_q.begin() + (b * shape.heads + h) * shape.key_width, shape.key_width,
                    query.data.begin());
        for (int64_t r = 0; r < shape.reads; ++r) {
          std::copy_n(row(wide_k, r, shape.key_width), shape.key_width,
                      keys.data.begin() + r * shape.key_width);
          std::copy_n(row(wide_v, r, shape.value_width), shape.value_width,
                      values.data.begin() + r * shape.value_width);
        }
        if (shape.own) {
          const int64_t one = b * shape.kv_heads + g, r = shape.reads;
          std::copy_n(wide_own_k.begin() + one * shape.key_width, shape.key_width,
                      keys.data.begin() + r * shape.key_width);
          std::copy_n(wide_own_v.begin() + one * shape.value_width, shape.value_width,
                      values.data.begin() + r * shape.value_width);
        }
        reference::Matrix everything(1, keys.rows);
        std::fill(everything.data.begin(), everything.data.end(), 1);
        const auto p = reference::masked_softmax(query, keys, kScale, everything);
        const auto mean = reference::multiply(p, values);
        out.insert(out.end(), mean.data.begin(), mean.data.end());
      }
    }
    return out;
  }
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const bool listed : {false, true}) {
    for (const bool own : {false, true}) {
      for (const int64_t reads : {0, 1, 2, 3, 4, 5, 63, 64, 65, 100, 1000}) {
        all.push_back({2, reads, 4, 2, 20, 33, listed, own});
      }
      for (const int64_t width : {1, 3, 15, 16, 17, 32, 64, 100}) {
        all.push_back({1, 67, 3, 3, width, width + 1, listed, own});
        all.push_back({1, 9, 6, 1, width + 1, width, listed, own});
      }
    }
  }
  return all;
}

template <typename T>
class AttentionStepTest : public ::testing::Test {};
TYPED_TEST_SUITE(AttentionStepTest, StorageTypes);

TYPED_TEST(AttentionStepTest, EveryInstructionSetMatchesTheReference) {
  for_each_target([] {
    for (const Shape& s : shapes()) {
      SCOPED_TRACE(::testing::PrintToString(s));
      Problem<TypeParam> problem(s);
      problem.run();
      expect_close(problem.y, problem.expected(), "y");
    }
  });
}

TYPED_TEST(AttentionStepTest, AnyAlignment) {
  for (const int64_t off : {1, 3, 7}) {
    Problem<TypeParam> problem({2, 67, 4, 2, 20, 64, true, true});
    problem.run();
    const auto aligned = problem.y;
    problem.run(off);
    EXPECT_TRUE(same_bits(problem.y, aligned)) << off;
  }
}

TYPED_TEST(AttentionStepTest, SameBitsForAnyNumberOfThreads) {
  for (const Shape& s : {Shape{1, 3000, 4, 2, 20, 33}, Shape{3, 1000, 3, 1, 64, 64, true, true}}) {
    expect_same_for_any_threads([&] {
      Problem<TypeParam> problem(s);
      problem.run();
      return problem.y;
    });
  }
}

// As everywhere: what is read and not a number shows; a logit of -inf reads nothing.
TYPED_TEST(AttentionStepTest, NumbersThatAreNotFinite) {
  using T = TypeParam;
  Problem<T> problem({1, 20, 1, 1, 4, 20});
  problem.k[7 * 4] = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
  problem.run();
  for (const double y : widened(problem.y)) ASSERT_TRUE(std::isnan(y));

  Problem<T> fewer({1, 19, 1, 1, 4, 20}), blocked({1, 20, 1, 1, 4, 20});
  std::copy_n(fewer.k.begin(), 19 * 4, blocked.k.begin());
  std::copy_n(fewer.v.begin(), 19 * 20, blocked.v.begin());
  blocked.q = fewer.q;
  blocked.q[0] = static_cast<T>(1.0F);
  fewer.q[0] = static_cast<T>(1.0F);
  blocked.k[19 * 4] = static_cast<T>(-std::numeric_limits<float>::infinity());
  fewer.run();
  blocked.run();
  expect_close(blocked.y, widened(fewer.y), "y");
}

}  // namespace
}  // namespace hopmix::kernels

#include "hopmix/kernels/decode/glr_decoder.h"

#include <gtest/gtest.h>

#include "hopmix/base/error.h"
#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

template <typename T>
struct Stream {
  GlrDecoderConfig config;
  int64_t time;
  std::vector<T> q, k, v, gate, d, d_self;

  Stream(const GlrDecoderConfig& c, int64_t n) : config(c), time(n) {
    q = random_values<T>(n * c.heads * c.key_width, 1);
    k = random_values<T>(n * c.heads * c.key_width, 2);
    v = random_values<T>(n * c.heads * c.value_width, 3);
    gate = random_values<T>(n * c.heads, 4, 0, 1);
    d = random_values<T>(n * c.heads, 5, 0, 1);
    d_self = random_values<T>(n * c.heads, 6, 0, 1);
  }

  GlrToken<T> token(int64_t i) const {
    const int64_t h = i * config.heads;
    return {q.data() + h * config.key_width,
            k.data() + h * config.key_width,
            v.data() + h * config.value_width,
            gate.data() + h,
            d.data() + h,
            d_self.data() + h};
  }

  std::vector<T> decode(GlrDecoder<T> decoder, int64_t begin = 0) const {
    const int64_t row = config.heads * config.value_width;
    std::vector<T> y = unwritten<T>((time - begin) * row);
    for (int64_t i = begin; i < time; ++i) decoder.step(token(i), y.data() + (i - begin) * row);
    EXPECT_EQ(decoder.position(), time);
    return y;
  }

  // As dense matrices, in double.
  std::vector<double> expected() const {
    const Sequences all = Sequences::batched(1, time);
    const auto head = [&](const std::vector<T>& x, int64_t h, int64_t width) {
      return slice(widened(x), all, all.list[0], config.heads, h, width);
    };
    std::vector<double> y(v.size());
    const Matrix mask = mask_of(to_csr(Pattern(config.pattern, time)), time);
    for (int64_t h = 0; h < config.heads; ++h) {
      const auto c = reference::shared_coefficients(
          head(q, h, config.key_width), head(k, h, config.key_width), head(gate, h, 1),
          head(d, h, 1), head(d_self, h, 1), 1 / std::sqrt(config.key_width), mask);
      unslice(reference::glr(c.a, c.b, head(v, h, config.value_width)), all, all.list[0],
              config.heads, h, y);
    }
    return y;
  }
};

template <typename T>
class GlrDecoderTest : public ::testing::Test {};
using SumTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GlrDecoderTest, SumTypes);

TYPED_TEST(GlrDecoderTest, IsTheWholePass) {
  for (const char* pattern : {"dense", "window(4)", "2^k", "cached(2^k)", "k^2+1", "cached(k^2+1)",
                              "blocks(16)", "fenwick", "random(3,1)", "offsets(7,11)"}) {
    for (const int64_t length : {0, 200}) {
      SCOPED_TRACE(std::string(pattern) + " of " + std::to_string(length));
      const Stream<TypeParam> stream({pattern, 2, 20, 33, 0, length}, 200);
      expect_close(stream.decode(GlrDecoder<TypeParam>(stream.config)), stream.expected(), "y");
    }
  }
  for (const int64_t width : {3, 20, 64, 100}) {
    const Stream<TypeParam> stream({"k^2+1", 1, width, width + 1}, 65);
    expect_close(stream.decode(GlrDecoder<TypeParam>(stream.config)), stream.expected(), "y");
  }
}

TYPED_TEST(GlrDecoderTest, AForkGoesItsOwnWay) {
  const Stream<TypeParam> stream({"cached(k^2+1)", 2, 5, 7}, 150);
  const std::vector<TypeParam> whole = stream.decode(GlrDecoder<TypeParam>(stream.config));
  GlrDecoder<TypeParam> decoder(stream.config);
  std::vector<TypeParam> y(14);
  for (int64_t i = 0; i < 60; ++i) decoder.step(stream.token(i), y.data());
  GlrDecoder<TypeParam> fork = decoder;
  for (int64_t i = 0; i < 40; ++i) fork.step(stream.token(0), y.data());
  const std::vector<TypeParam> rest(whole.begin() + 60 * 14, whole.end());
  EXPECT_TRUE(same_bits(stream.decode(decoder, 60), rest));
}

TEST(GlrDecoder, MemoryIsThePeakOfTheCache) {
  const Stream<float> stream({"cached(2^k)", 2, 4, 8}, 1);
  GlrDecoder<float> decoder(stream.config);
  std::vector<float> y(16);
  int64_t last = 0;
  for (int64_t i = 0; i < 100'000; ++i) {
    decoder.step(stream.token(0), y.data());
    ASSERT_GE(decoder.bytes(), last);
    last = decoder.bytes();
  }
  const int64_t slots = SlotPolicy(Pattern("cached(2^k)", 1)).slots(100'000);
  EXPECT_EQ(decoder.bytes(), slots * 2 * (4 + 8) * 4);
  EXPECT_LE(slots, 18);
}

TEST(GlrDecoder, Errors) {
  EXPECT_THROW(GlrDecoder<float>({.pattern = "k^"}), Error);
  EXPECT_THROW(GlrDecoder<float>({.heads = 0}), Error);
  EXPECT_THROW(GlrDecoder<float>({.length = -1}), Error);
  for (const char* pattern : {"2^k", "window(3)", "dense"}) {
    const Stream<float> stream({pattern, 1, 4, 4, 0, 1}, 1);
    GlrDecoder<float> decoder(stream.config);
    std::vector<float> y(4);
    decoder.step(stream.token(0), y.data());
    EXPECT_THROW(decoder.step(stream.token(0), y.data()), Error);
    EXPECT_EQ(decoder.position(), 1);
  }
}

}  // namespace
}  // namespace hopmix::kernels

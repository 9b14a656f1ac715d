// The parts of a chunk of the delta rule against their definitions, in double, for every
// instruction set.
#include "hopmix/kernels/chunked/delta_tile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

template <typename A>
class DeltaTile : public ::testing::Test {
 protected:
  static constexpr double kRounding = std::is_same_v<A, double> ? 1e-14 : 4e-6;

  static std::vector<A> random(int64_t size, double low, double high, unsigned seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> uniform(low, high);
    std::vector<A> out(static_cast<size_t>(size));
    for (A& x : out) x = static_cast<A>(uniform(generator));
    return out;
  }

  // G of n tokens, with a decay in the middle that leaves small ones few digits; and as two parts.
  explicit DeltaTile() {
    const std::vector<A> g = random(kMost, -0.5, 0, 7);
    long double sum = 0;
    for (int64_t i = 0; i < kMost; ++i) {
      sum += i == 20 ? -300.0L : static_cast<long double>(g[i]);
      exact.push_back(sum);
      high.push_back(static_cast<A>(sum));
      low.push_back(static_cast<A>(sum - high.back()));
    }
  }
  double decay(int64_t i, int64_t j, bool gated) const {
    return gated ? static_cast<double>(std::exp(exact[i] - exact[j])) : 1;
  }

  static constexpr int64_t kMost = 64;
  std::vector<long double> exact;
  std::vector<A> high, low;
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(DeltaTile, Types);

TYPED_TEST(DeltaTile, WeightsAndTheirGradients) {
  using A = TypeParam;
  testing::for_each_target([&] {
    for (const bool gated : {false, true}) {
      for (const int64_t n : {16, 48, 64}) {
        const std::vector<A> kk = this->random(n * n, -1, 1, 1), qk = this->random(n * n, -1, 1, 2);
        const std::vector<A> dm = this->random(n * n, -1, 1, 3), dp = this->random(n * n, -1, 1, 4);
        const DeltaScores<A> scores{n, kk.data(), qk.data(), gated ? this->high.data() : nullptr,
                                    gated ? this->low.data() : nullptr};
        std::vector<A> m(n * n), p(n * n), mt(n * n), pt(n * n), decay(n * n), dkk(n * n),
            dqk(n * n), scratch(n), dg(n);
        const auto table = delta_tiles<A, A>();
        table.weights(scores, m.data(), p.data());
        table.weights_transposed(scores, decay.data(), mt.data(), pt.data());
        table.weights_backward(scores, decay.data(), mt.data(), dm.data(), dp.data(), dkk.data(),
                               dqk.data(), scratch.data(), dg.data());
        std::vector<double> expected_dg(n);
        const auto near = [&](double actual, double expected, const char* what, int64_t at) {
          ASSERT_LE(std::abs(actual - expected), this->kRounding) << what << " " << at;
        };
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const double strict = j < i ? this->decay(i, j, gated) : 0;
            const double seen = j <= i ? this->decay(i, j, gated) : 0;
            const int64_t at = i * n + j, turned = j * n + i;
            near(m[at], strict * kk[at], "m", at);
            near(p[at], seen * qk[at], "p", at);
            near(mt[turned], strict * kk[turned], "m transposed", at);
            near(pt[turned], seen * qk[turned], "p transposed", at);
            near(decay[turned], seen, "decay", at);
            near(dkk[turned], strict * dm[turned], "dkk", at);
            near(dqk[turned], seen * dp[turned], "dqk", at);
            for (int64_t t = j + 1; t <= i; ++t) {
              expected_dg[t] += strict * kk[turned] * dm[turned] + seen * qk[turned] * dp[turned];
            }
          }
        }
        for (int64_t t = 0; t < n; ++t) {
          ASSERT_LE(std::abs(dg[t] - expected_dg[t]),
                    this->kRounding * 16 * static_cast<double>(n));
        }
      }
    }
  });
}

TYPED_TEST(DeltaTile, Errors) {
  using A = TypeParam;
  const int64_t n = 16, width = 32;
  const std::vector<A> beta = this->random(n, 0, 1, 2);
  const std::vector<A> v = this->random(n * width, -1, 1, 3), x = this->random(n * width, -1, 1, 4);
  testing::for_each_target([&] {
    std::vector<A> w(n * width), u(n * width), sum = x;
    delta_tiles<A, A>().errors(n, width, beta.data(), v.data(), x.data(), w.data(), u.data());
    delta_tiles<A, A>().add(n * width, v.data(), sum.data());
    for (int64_t at = 0; at < n * width; ++at) {
      const double error = double{v[at]} - double{x[at]};
      ASSERT_LE(std::abs(w[at] - error), this->kRounding);
      ASSERT_LE(std::abs(u[at] - beta[at / width] * error), this->kRounding);
      ASSERT_EQ(sum[at], v[at] + x[at]);
    }
  });
}

}  // namespace
}  // namespace hopmix::kernels

#include "hopmix/analysis/growth.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hopmix/base/error.h"

namespace hopmix {
namespace {

template <class F>
std::vector<Sample> series(F f, int64_t first = 64, int count = 8) {
  std::vector<Sample> samples;
  for (int k = 0; k < count; ++k) {
    const int64_t n = first << k;
    samples.push_back({n, static_cast<double>(f(static_cast<double>(n)))});
  }
  return samples;
}

std::string fitted(const std::vector<Sample>& samples) { return fit_growth(samples)->text(); }

TEST(Growth, KnownSeries) {
  EXPECT_EQ(fitted(series([](double) { return 7; })), "1");
  EXPECT_EQ(fitted(series([](double n) { return 8 - 36 / n; })), "1");  // window(8), per token
  EXPECT_EQ(fitted(series([](double n) { return std::min(n, 500.0); })), "1");  // levels off
  EXPECT_EQ(fitted(series([](double n) { return std::log2(n); })), "log n");
  EXPECT_EQ(fitted(series([](double n) { return std::floor(std::log2(n)) + 1; })), "log n");
  EXPECT_EQ(fitted(series([](double n) { return 3 * std::log(n) - 2; })), "log n");
  // Integers near log n / log 1.618, like the cache of cached(fib).
  EXPECT_EQ(fitted({{4096, 17}, {8192, 18}, {16384, 19}, {32768, 21}, {65536, 22}, {131072, 23}}),
            "log n");
  EXPECT_EQ(fitted({{4096, 17}, {8192, 17}, {16384, 19}, {32768, 20}, {65536, 22}, {131072, 23}}),
            "log n");
  EXPECT_EQ(fitted(series([](double n) { return std::pow(n, 0.1); }, 64, 24)), "n^0.10");
  EXPECT_EQ(fitted(series([](double n) { return std::sqrt(n); })), "n^0.50");
  EXPECT_EQ(fitted(series([](double n) { return std::floor(std::sqrt(n - 2)) + 1; })), "n^0.50");
  EXPECT_EQ(fitted(series([](double n) { return 0.2 * std::cbrt(n); })), "n^0.33");
  EXPECT_EQ(fitted(series([](double n) { return (n - 1) / 2; })), "n^1.00");
  EXPECT_EQ(fitted(series([](double n) { return n * n; })), "n^2.00");
  EXPECT_EQ(fitted(series([](double n) { return 100 / n; })), "n^-1.00");
}

TEST(Growth, TheExponentIsThatOfTheLeastSquaresLine) {
  // Through (log 2, log 1), (log 4, log 4), (log 8, log 4): slope log2 over 0, 2, 2 is 1.
  const Growth growth = fit_growth({{2, 1}, {4, 4}, {8, 4}}).value();
  EXPECT_NEAR(growth.exponent, 1, 1e-12);
  // Its residuals by hand: the line is log2 v = log2 n - 2/3.
  const double c = std::exp2(-2.0 / 3);
  const double squares = std::pow(2 * c - 1, 2) + std::pow(c - 1, 2) + std::pow(2 * c - 1, 2);
  if (growth.form == Growth::Form::kPower) {
    EXPECT_NEAR(growth.error, std::sqrt(squares / 3), 1e-12);
  } else {
    EXPECT_LT(growth.error, std::sqrt(squares / 3));
  }
}

TEST(Growth, AnExactFormLeavesNoResidual) {
  EXPECT_LT(fit_growth(series([](double n) { return std::pow(n, 0.7); }))->error, 1e-12);
  EXPECT_LT(fit_growth(series([](double n) { return 5 + 2 * std::log(n); }))->error, 1e-12);
  EXPECT_LT(fit_growth(series([](double) { return 3; }))->error, 1e-12);
}

TEST(Growth, TooLittleToSay) {
  EXPECT_FALSE(fit_growth({}));
  EXPECT_FALSE(fit_growth({{2, 1}, {4, 2}}));
  EXPECT_TRUE(fit_growth({{2, 1}, {4, 2}, {8, 4}}));
  EXPECT_FALSE(fit_growth({{2, 0}, {4, 2}, {8, 4}}));
  EXPECT_FALSE(fit_growth({{2, 1}, {4, std::nan("")}, {8, 4}}));
  EXPECT_THROW(fit_growth({{1, 1}, {4, 2}, {8, 4}}), Error);
  EXPECT_THROW(fit_growth({{4, 1}, {4, 2}, {8, 4}}), Error);
}

}  // namespace
}  // namespace hopmix

#include "hopmix/analysis/growth.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "hopmix/base/error.h"

namespace hopmix {
namespace {

constexpr double kFlat = 0.05;  // smaller exponents and relative changes count as constant
// A smaller power differs from a logarithm by less than the rounding of small counts.
constexpr double kSlow = 0.15, kSlowSlack = 2;
constexpr size_t kFewest = 3;  // two parameters fit any two samples

struct Line {
  double intercept = 0, slope = 0;
};

// Weighted least squares; `x` must have at least two distinct values.
Line fit_line(const std::vector<double>& x, const std::vector<double>& y,
              const std::vector<double>& weight) {
  double sum = 0, mean_x = 0, mean_y = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += weight[i];
    mean_x += weight[i] * x[i];
    mean_y += weight[i] * y[i];
  }
  mean_x /= sum;
  mean_y /= sum;
  double xx = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += weight[i] * (x[i] - mean_x) * (x[i] - mean_x);
    xy += weight[i] * (x[i] - mean_x) * (y[i] - mean_y);
  }
  return {mean_y - xy / xx * mean_x, xy / xx};
}

// Root mean square of the relative residuals of fitted(i) against `y`.
template <class Fitted>
double residual(const std::vector<double>& y, Fitted fitted) {
  double squares = 0;
  for (size_t i = 0; i < y.size(); ++i) squares += std::pow(fitted(i) / y[i] - 1, 2);
  return std::sqrt(squares / static_cast<double>(y.size()));
}

bool levelled_off(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.end() - kFewest, values.end());
  return *most < (1 + kFlat) * *least;
}

}  // namespace

std::string Growth::text() const {
  if (form == Form::kConstant) return "1";
  if (form == Form::kLogarithm) return "log n";
  char text[32];
  std::snprintf(text, sizeof text, "n^%.2f", exponent);
  return text;
}

std::optional<Growth> fit_growth(const std::vector<Sample>& samples) {
  std::vector<double> log_n, value, log_value, one, relative;
  int64_t before = 1;
  for (const Sample& sample : samples) {
    if (sample.n <= before) {
      throw Error("lengths of a growth must ascend from at least 2: " + std::to_string(sample.n) +
                  " follows " + std::to_string(before));
    }
    before = sample.n;
    if (!(sample.value > 0) || !std::isfinite(sample.value)) return std::nullopt;
    log_n.push_back(std::log(static_cast<double>(sample.n)));
    value.push_back(sample.value);
    log_value.push_back(std::log(sample.value));
    one.push_back(1);
    relative.push_back(1 / (sample.value * sample.value));
  }
  if (samples.size() < kFewest) return std::nullopt;

  const Line power = fit_line(log_n, log_value, one);
  Growth growth{Growth::Form::kPower, power.slope, 0};
  growth.error =
      residual(value, [&](size_t i) { return std::exp(power.intercept + power.slope * log_n[i]); });
  if (std::abs(power.slope) < kFlat || levelled_off(value)) {
    growth.form = Growth::Form::kConstant;
    double mean = 0, weight = 0;
    for (size_t i = 0; i < value.size(); ++i) {
      mean += relative[i] * value[i];
      weight += relative[i];
    }
    growth.error = residual(value, [&](size_t) { return mean / weight; });
    return growth;
  }
  const Line logarithm = fit_line(log_n, value, relative);
  if (logarithm.slope < 0) return growth;
  const double error =
      residual(value, [&](size_t i) { return logarithm.intercept + logarithm.slope * log_n[i]; });
  const double slack = power.slope < kSlow ? kSlowSlack : 1;
  if (error < slack * growth.error) {
    growth.form = Growth::Form::kLogarithm;
    growth.error = error;
  }
  return growth;
}

}  // namespace hopmix

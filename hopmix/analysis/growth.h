// How a quantity grows with the sequence length, by a least-squares fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hopmix {

/// A quantity at one length.
struct Sample {
  int64_t n = 0;
  double value = 0;
};

/// The best-fitting form.
struct Growth {
  enum class Form { kConstant, kLogarithm, kPower };
  Form form = Form::kConstant;
  double exponent = 0;  // p of c n^p, fitted to all samples for every form
  double error = 0;     // root mean square of the relative residuals

  /// "1", "log n" or "n^0.50".
  std::string text() const;
};

/// Fits c n^p (a line through log value over log n) and a + b log n, b >= 0 (weighted by 1 /
/// value^2, so that both residuals are relative). The result is a constant if |p| is below 0.05 or
/// the last three values differ by less than 5%; otherwise the form with the smaller root mean
/// square residual, the power on a tie. If p is below 0.15, where integers can hardly distinguish a
/// power from a logarithm, it is log n unless its residual is twice as large. Returns none for
/// fewer than 3 samples, or if a value is not positive and finite. Throws Error unless the lengths
/// ascend from at least 2.
std::optional<Growth> fit_growth(const std::vector<Sample>& samples);

}  // namespace hopmix

#include "hopmix/analysis/propositions.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "hopmix/analysis/congestion.h"
#include "hopmix/analysis/hops.h"
#include "hopmix/base/error.h"

namespace hopmix {
namespace {

// The largest x >= 0 with `within(x)`, which must hold exactly from 0 up to some x.
int64_t largest(int64_t high, const std::function<bool(int64_t)>& within) {
  int64_t low = 0;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    within(middle) ? low = middle : high = middle - 1;
  }
  return low;
}

struct Named {
  const char* spec;
  std::function<int64_t(int64_t)> count;  // number of k with f(k) <= i, i >= 1, by a formula
};

std::vector<Named> functions() {
  return {
      {"2^k", [](int64_t i) { return static_cast<int64_t>(std::bit_width(uint64_t(i))); }},
      {"k^2+1",
       [](int64_t i) { return 1 + largest(i, [&](int64_t k) { return k * k + 1 <= i; }); }},
      {"k^3+1",
       [](int64_t i) {
         return 1 + largest(std::min<int64_t>(i, 2'000'000),
                            [&](int64_t k) { return k * k * k + 1 <= i; });
       }},
      {"k*(k+1)/2+1",
       [](int64_t i) {
         return 1 + largest(i, [&](int64_t k) { return k * (k + 1) / 2 + 1 <= i; });
       }},
  };
}

PropositionRow cost_row(const Named& f, int64_t n) {
  const Pattern pattern(f.spec, n);
  bool all = true;
  int64_t most = 0;
  std::vector<int32_t> cols;
  for (int64_t i = 0; i < n; ++i) {
    pattern.row(i, cols);
    const auto reads = static_cast<int64_t>(cols.size());
    most = std::max(most, reads);
    all &= reads == (i == 0 ? 0 : f.count(i));
  }
  return {"4.2 cost g(i)",
          f.spec,
          n,
          "largest row",
          static_cast<double>(most),
          "=",
          static_cast<double>(f.count(n - 1)),
          all};
}

PropositionRow binary_row(int64_t n) {
  const std::vector<int32_t> hops = hops_by_distance(Pattern("2^k", n).offsets(), n);
  bool all = true;
  int64_t most = 0, ones = 0;
  for (int64_t s = 0; s < n; ++s) {
    all &= hops[s] == std::popcount(static_cast<uint64_t>(s));
    most = std::max<int64_t>(most, hops[s]);
    ones = std::max<int64_t>(ones, std::popcount(static_cast<uint64_t>(s)));
  }
  return {"4.5 hops are the ones in binary", "2^k", n, "most hops", static_cast<double>(most), "=",
          static_cast<double>(ones),         all};
}

PropositionRow lagrange_row(int64_t n) {
  const std::vector<int32_t> hops = hops_by_distance(Pattern("k^2+1", n).offsets(), n);
  const int32_t most = *std::max_element(hops.begin(), hops.end());
  const bool reached = std::find(hops.begin(), hops.end(), -1) == hops.end();
  return {"4.5 at most 4 hops (Lagrange)", "k^2+1", n, "most hops",
          static_cast<double>(most),       "<=",    4, reached && most <= 4};
}

PropositionRow lower_row(const char* spec, int64_t n) {
  CongestionOptions options;
  options.integral = false;
  const Congestion known = congestion(Pattern(spec, n), options);
  const std::vector<int32_t> hops = hops_by_distance(Pattern(spec, n).offsets(), n);
  const double bound = (hops[n / 2] + 1) / 2.0;
  // Allow for rounding in the linear program.
  const double measured = known.fractional.value_or(std::nan(""));
  return {"4.7 congestion >= (d + 1) / 2", spec, n, "fractional congestion", measured, ">=", bound,
          measured >= bound - 1e-9 * bound};
}

PropositionRow upper_row(const char* spec, int64_t n) {
  const std::vector<int64_t> offsets = Pattern(spec, n).offsets();
  const int64_t hops = hops_by_distance(offsets, n)[n / 2];
  const int64_t measured = translated_routing_congestion(offsets, n / 2);
  return {"4.8 congestion <= D",
          spec,
          n,
          "congestion of its routing",
          static_cast<double>(measured),
          "<=",
          static_cast<double>(hops),
          measured <= hops};
}

}  // namespace

int64_t translated_routing_congestion(const std::vector<int64_t>& offsets, int64_t inputs) {
  const std::vector<int32_t> hops = hops_by_distance(offsets, inputs + 1);
  if (hops[inputs] < 0) {
    throw Error("no offsets sum to " + std::to_string(inputs) + ": there is no path to route");
  }
  std::vector<int64_t> steps;
  for (int64_t left = inputs; left > 0;) {
    const auto step = std::find_if(offsets.begin(), offsets.end(), [&](int64_t f) {
      return f <= left && hops[left - f] == hops[left] - 1;
    });
    steps.push_back(*step);
    left -= *step;
  }
  std::vector<int64_t> paths(2 * inputs);
  for (int64_t c = 0; c < inputs; ++c) {
    int64_t at = c + inputs;
    ++paths[at];
    for (const int64_t step : steps) ++paths[at -= step];
  }
  return inputs > 0 ? *std::max_element(paths.begin(), paths.end()) : 0;
}

std::vector<PropositionRow> measure_propositions(int64_t hops_tokens, int64_t congestion_tokens) {
  std::vector<PropositionRow> rows;
  for (const Named& f : functions()) {
    for (int64_t n = 100; n <= hops_tokens; n *= 10) rows.push_back(cost_row(f, n));
  }
  for (int64_t n = 100; n <= hops_tokens; n *= 10) rows.push_back(binary_row(n));
  for (int64_t n = 100; n <= hops_tokens; n *= 10) rows.push_back(lagrange_row(n));
  for (const Named& f : functions()) {
    // Lengths with 2^m - 1 inputs, the worst distance for 2^k, and with 2^m inputs.
    for (int64_t half = 8; 2 * half <= congestion_tokens; half *= 2) {
      for (const int64_t n : {2 * half - 2, 2 * half}) {
        rows.push_back(lower_row(f.spec, n));
        rows.push_back(upper_row(f.spec, n));
      }
    }
  }
  return rows;
}

}  // namespace hopmix

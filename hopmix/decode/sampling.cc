#include "hopmix/decode/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string>

#include "hopmix/base/error.h"

namespace hopmix::decode {
namespace {

Error bad(const char* name, double value, const char* right) {
  std::ostringstream message;
  message << name << " = " << value << ": must be " << right;
  return Error(message.str());
}

// The tokens of the `count` largest logits, largest first.
std::vector<int64_t> largest(std::span<const float> logits, size_t count) {
  std::vector<int64_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto before = [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (count < tokens.size()) {
    const auto last = tokens.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(tokens.begin(), last, tokens.end(), before);
    tokens.resize(count);
  }
  std::sort(tokens.begin(), tokens.end(), before);
  return tokens;
}

}  // namespace

void check(const SamplingConfig& config) {
  if (!(config.temperature >= 0 && std::isfinite(config.temperature))) {
    throw bad("temperature", config.temperature, "at least 0 and finite");
  }
  if (config.top_k < 0) {
    throw Error("top_k = " + std::to_string(config.top_k) + ": must be at least 0");
  }
  if (!(config.top_p > 0 && config.top_p <= 1)) {
    throw bad("top_p", config.top_p, "above 0 and at most 1");
  }
}

std::vector<Candidate> candidates(std::span<const float> logits, const SamplingConfig& config) {
  check(config);
  bool some = false;
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity()) {
      throw Error("the model's logits are not finite: training may have diverged");
    }
    some = some || std::isfinite(logit);
  }
  if (!some) throw Error("the model's logits are not finite: every token has probability 0");

  const bool greedy = config.temperature == 0;
  size_t count = logits.size();
  if (config.top_k > 0) count = std::min(count, static_cast<size_t>(config.top_k));
  if (greedy) count = 1;
  const std::vector<int64_t> tokens = largest(logits, count);
  const auto logit_of = [&](int64_t token) {
    return static_cast<double>(logits[static_cast<size_t>(token)]);
  };
  std::vector<Candidate> result;
  double sum = 0;
  for (const int64_t token : tokens) {
    const double below = logit_of(token) - logit_of(tokens[0]);
    const double weight = greedy ? 1 : std::exp(below / config.temperature);
    if (weight == 0) break;  // all later weights are 0 too
    result.push_back({token, weight});
    sum += weight;
  }

  if (config.top_p < 1) {
    double kept = 0;
    size_t kept_count = 0;
    while (kept < config.top_p * sum && kept_count < result.size()) {
      kept += result[kept_count++].probability;
    }
    result.resize(kept_count);
    sum = kept;
  }
  for (Candidate& candidate : result) candidate.probability /= sum;
  return result;
}

int64_t draw(const std::vector<Candidate>& candidates, std::mt19937_64& random) {
  // The standard specifies the output of its engines, but not of its distributions.
  double left = static_cast<double>(random() >> 11) * 0x1p-53;
  for (const Candidate& candidate : candidates) {
    left -= candidate.probability;
    if (left < 0) return candidate.token;
  }
  return candidates.back().token;  // rounding may leave the sum just below 1
}

}  // namespace hopmix::decode

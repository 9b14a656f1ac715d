#include "hopmix/decode/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "hopmix/base/testing.h"

namespace hopmix::decode {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> logits;
  for (size_t i = 0; i < n; ++i) {
    logits.push_back(static_cast<float>(random() >> 40) * 0x1p-24f * 6 - 3);
  }
  return logits;
}

// The definition: softmax of logits / temperature; set all but the k most probable to zero, then
// all but the fewest most probable that reach p of what is left; and rescale to sum to 1.
std::vector<double> distribution(const std::vector<float>& logits, const SamplingConfig& config) {
  std::vector<double> p;
  double sum = 0;
  for (const float logit : logits) p.push_back(std::exp(logit / config.temperature));
  for (const double x : p) sum += x;
  for (double& x : p) x /= sum;
  // The number of tokens that are more probable; equals count if they come first.
  const auto rank = [&](size_t i) {
    int64_t above = 0;
    for (size_t j = 0; j < p.size(); ++j) above += p[j] > p[i] || (p[j] == p[i] && j < i);
    return above;
  };
  const auto keep = [&](const auto& kept) {
    std::vector<double> rest(p.size());
    double left = 0;
    for (size_t i = 0; i < p.size(); ++i) left += rest[i] = kept(i) ? p[i] : 0;
    for (double& x : rest) x /= left;
    p = rest;
  };
  if (config.top_k > 0) keep([&](size_t i) { return rank(i) < config.top_k; });
  keep([&](size_t i) {
    double above = 0;
    for (size_t j = 0; j < p.size(); ++j) above += rank(j) < rank(i) ? p[j] : 0;
    return above < config.top_p && p[i] > 0;
  });
  return p;
}

std::vector<SamplingConfig> configs() {
  std::vector<SamplingConfig> result;
  for (const double temperature : {0.3, 1.0, 2.5}) {
    for (const int64_t top_k : {0, 1, 5, 1000}) {
      for (const double top_p : {1.0, 0.9, 0.35, 1e-9}) {
        result.push_back({.temperature = temperature, .top_k = top_k, .top_p = top_p});
      }
    }
  }
  return result;
}

TEST(Candidates, AreTheDefinition) {
  for (const size_t n : {1, 2, 20, 64}) {
    const std::vector<float> logits = random_logits(n, n);
    for (const SamplingConfig& config : configs()) {
      const std::vector<double> expected = distribution(logits, config);
      std::vector<double> p(n);
      double last = 1;
      for (const Candidate& candidate : candidates(logits, config)) {
        EXPECT_GT(candidate.probability, 0);
        EXPECT_LE(candidate.probability, last) << "most probable first";
        last = candidate.probability;
        p[static_cast<size_t>(candidate.token)] = candidate.probability;
      }
      for (size_t i = 0; i < n; ++i) EXPECT_NEAR(p[i], expected[i], 1e-12);
    }
  }
}

std::vector<int64_t> tokens_of(const std::vector<float>& logits, const SamplingConfig& config) {
  std::vector<int64_t> tokens;
  for (const Candidate& candidate : candidates(logits, config)) tokens.push_back(candidate.token);
  return tokens;
}

TEST(Candidates, AtTheBoundaryOfTopP) {
  const std::vector<float> halves = {0, 0};
  EXPECT_EQ(tokens_of(halves, {.top_p = 0.5}).size(), 1u);
  EXPECT_EQ(tokens_of(halves, {.top_p = std::nextafter(0.5, 1)}).size(), 2u);
  const std::vector<float> quarters = {0, 0, 0, 0};
  EXPECT_EQ(tokens_of(quarters, {.top_p = 0.75}), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(tokens_of(quarters, {.top_p = 1}).size(), 4u);
  EXPECT_EQ(tokens_of({-1, 2, 0}, {.top_p = 1e-300}), std::vector<int64_t>{1});
  // top_p applies to what top_k leaves: half of two tokens is one, half of four would be two.
  EXPECT_EQ(tokens_of(quarters, {.top_k = 2, .top_p = 0.5}), std::vector<int64_t>{0});
}

TEST(Candidates, OfEqualsTheLower) {
  const std::vector<float> logits = {1, 3, 2, 3, 3};
  EXPECT_EQ(tokens_of(logits, {.temperature = 0}), std::vector<int64_t>{1});
  EXPECT_EQ(tokens_of(logits, {.top_k = 2}), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(tokens_of(logits, {.top_p = 0.5}), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(candidates(logits, {.temperature = 0})[0].probability, 1);
}

TEST(Candidates, ExtremesStayExact) {
  // Tokens whose weight underflows are not candidates; a tiny temperature does not overflow.
  EXPECT_EQ(tokens_of({1000, -1000, 1000}, {}), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(tokens_of({3e38f, -3e38f}, {.temperature = 1e-300}), std::vector<int64_t>{0});
  EXPECT_EQ(tokens_of({-kInfinity, -5}, {}), std::vector<int64_t>{1});
  const auto flat = candidates(std::vector<float>{5, -5}, {.temperature = 1e300});
  EXPECT_EQ(flat[0].probability, 0.5);
}

TEST(Candidates, Errors) {
  const std::string start = "the model's logits are not finite";
  for (const float bad : {std::nanf(""), kInfinity}) {
    EXPECT_TRUE(error_of([&] {
                  candidates(std::vector<float>{1, bad, 0}, {});
                }).starts_with(start));
  }
  EXPECT_TRUE(error_of([&] { candidates(std::vector<float>{-kInfinity}, {}); }).starts_with(start));
  const std::vector<float> logits = {0};
  EXPECT_EQ(error_of([&] { candidates(logits, {.temperature = -0.5}); }),
            "temperature = -0.5: must be at least 0 and finite");
  EXPECT_EQ(error_of([&] { candidates(logits, {.temperature = std::nan("")}); }),
            "temperature = nan: must be at least 0 and finite");
  EXPECT_EQ(error_of([&] { candidates(logits, {.top_k = -1}); }), "top_k = -1: must be at least 0");
  for (const double p : {0.0, 1.5, -1.0, std::nan("")}) {
    EXPECT_TRUE(error_of([&] { candidates(logits, {.top_p = p}); }).starts_with("top_p = ")) << p;
  }
}

// Pearson's statistic against the definition, within five standard deviations of its mean.
TEST(Draw, FollowsTheDistribution) {
  std::vector<float> logits = random_logits(20, 5);
  for (float& logit : logits) logit /= 2;  // so that every token is drawn often
  for (const SamplingConfig& config : {SamplingConfig{}, SamplingConfig{.temperature = 0.5},
                                       SamplingConfig{.top_k = 7}, SamplingConfig{.top_p = 0.8}}) {
    const std::vector<Candidate> from = candidates(logits, config);
    const std::vector<double> expected = distribution(logits, config);
    std::mt19937_64 random(11);
    const double draws = 400000;
    std::map<int64_t, double> counts;
    for (int i = 0; i < static_cast<int>(draws); ++i) counts[draw(from, random)] += 1;
    double sum = 0;
    for (const auto& [token, count] : counts) {
      const double mean = draws * expected[static_cast<size_t>(token)];
      ASSERT_GT(mean, 5);
      sum += (count - mean) * (count - mean) / mean;
    }
    const double freedom = static_cast<double>(from.size()) - 1;
    EXPECT_EQ(counts.size(), from.size());
    EXPECT_LT(sum, freedom + 5 * std::sqrt(2 * freedom));
  }
}

TEST(Draw, TheSameSeedDrawsTheSame) {
  const std::vector<Candidate> from = candidates(random_logits(50, 6), {});
  std::mt19937_64 a(3), b(3), c(4);
  int differ = 0;
  for (int i = 0; i < 100; ++i) {
    const int64_t token = draw(from, a);
    EXPECT_EQ(token, draw(from, b));
    differ += token != draw(from, c);
  }
  EXPECT_GT(differ, 50);
}

}  // namespace
}  // namespace hopmix::decode

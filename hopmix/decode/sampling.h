// Samples the next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace hopmix::decode {

struct SamplingConfig {
  double temperature = 1;  // divides the logits; 0 always takes the most probable token
  int64_t top_k = 0;       // keeps the k most probable tokens; 0 keeps all
  double top_p = 1;        // then keeps the fewest tokens whose probabilities reach this sum
};

/// Throws Error unless temperature and top_k are at least 0, and top_p is above 0 and at most 1.
void check(const SamplingConfig& config);

struct Candidate {
  int64_t token;
  double probability;
};

/// The candidate tokens with their probabilities, which sum to 1, most probable first; among equals
/// the lower token comes first. Throws Error if a logit is NaN or none is finite.
std::vector<Candidate> candidates(std::span<const float> logits, const SamplingConfig& config);

/// Draws one candidate. The same numbers from `random` give the same token on every platform.
int64_t draw(const std::vector<Candidate>& candidates, std::mt19937_64& random);

}  // namespace hopmix::decode

// The next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace hopmix::decode {

struct SamplingConfig {
  double temperature = 1;  // logits are divided by it; 0: the most probable token, always
  int64_t top_k = 0;       // only the k most probable tokens; 0: all
  double top_p = 1;  // of these, only the fewest most probable that have this probability together
};

/// Throws Error for a value out of range: temperature and top_k from 0, top_p above 0 and to 1.
void check(const SamplingConfig& config);

struct Candidate {
  int64_t token;
  double probability;
};

/// The tokens that may come next and their probabilities, which sum to 1, most probable first; of
/// equally probable ones the lower is the more probable. Throws Error if a logit is NaN, or none is
/// finite.
std::vector<Candidate> candidates(std::span<const float> logits, const SamplingConfig& config);

/// Draws one. The same numbers of `random` give the same token everywhere.
int64_t draw(const std::vector<Candidate>& candidates, std::mt19937_64& random);

}  // namespace hopmix::decode

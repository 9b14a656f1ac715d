// Measures the propositions of arXiv 2605.31367 about f patterns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hopmix {

/// One measurement. `relation` states how `measured` must compare with `bound`: "=", "<=" or ">=".
struct PropositionRow {
  std::string proposition;  // its number and statement
  std::string pattern;
  int64_t n = 0;  // tokens
  std::string quantity;
  double measured = 0;
  std::string relation;
  double bound = 0;
  bool holds = false;  // checked for every token or distance that the proposition covers
};

/// Propositions and corollaries 4.2 (token i reads as many tokens as f has values up to i), 4.5
/// (hops: the number of ones in binary for 2^k, at most 4 for k^2+1), 4.7 (congestion at least (d +
/// 1) / 2) and 4.8 (a routing of congestion at most D), for f = 2^k, k^2+1, k^3+1, k*(k+1)/2+1 and
/// several n: hops up to `hops_tokens`, congestion up to `congestion_tokens`. Values of f are
/// counted by closed formulas, independently of the pattern's code. Results are reproducible.
std::vector<PropositionRow> measure_propositions(int64_t hops_tokens = 100'000,
                                                 int64_t congestion_tokens = 128);

/// Proposition 4.8's routing on 2 * `inputs` tokens, taken literally: every output goes back by the
/// same steps, the fewest offsets that sum to `inputs`. Returns the most paths through one token,
/// endpoints included. Throws Error if no offsets sum to `inputs`.
int64_t translated_routing_congestion(const std::vector<int64_t>& offsets, int64_t inputs);

}  // namespace hopmix

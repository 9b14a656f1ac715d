// `hopmix reproduce propositions`.
#pragma once

namespace hopmix::cli {

/// Measures the propositions of arXiv 2605.31367 about patterns (analysis/propositions.h) and
/// prints them next to their bounds, as a table or as JSON. Takes seconds.
void reproduce_propositions(bool json);

}  // namespace hopmix::cli

// Composition of permutations: the word problem of a finite group.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct PermutationConfig {
  std::string group = "S5";  // S3, S4, S5 or A4, A5: all permutations, or the even ones
  std::string tokens =
      "elements";  // or "swaps": those that move at most two things (not of A4, A5)
  int64_t length = 32;
};

/// "The Illusion of State in State-Space Models" (arXiv 2404.08819); swaps as in "Unlocking
/// State-Tracking in Linear RNNs Through Negative Eigenvalues" (arXiv 2411.12537). Tokens are
/// elements of a group, drawn uniformly; at every position the target is the product so far, the
/// first permutation applied first. A token is the element's index in lexicographic order, so 0 is
/// the identity; the vocabulary is the whole group.
///
/// Slices: the number of factors, rounded up to a power of two ("factors").
///
/// Throws Error for an invalid value; `where` precedes the key in the message.
Task permutation_task(const PermutationConfig& config, const std::string& where = "");

TaskEntry permutation_entry();

}  // namespace hopmix::tasks

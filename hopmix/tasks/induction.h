// Induction heads: recall what followed.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct InductionConfig {
  int64_t vocabulary = 16;  // including the special token; at least 3
  int64_t length = 256;     // at least 3
  std::string form = "special";
};

/// "special" ("Hungry Hungry Hippos", arXiv 2212.14052; sizes of "Mamba", arXiv 2312.00752):
/// symbols are drawn uniformly; the special token V-1 occurs once at a position uniform over 0..T-3
/// and again at the end, where the target is the symbol that followed it. "bigram" ("In-context
/// Learning and Induction Heads", arXiv 2209.11895): symbols are drawn uniformly, without a special
/// token; wherever a symbol occurred before, the target is what followed it last time. Requires T
/// >= V, so that some symbol repeats.
///
/// Symbols are 0..V-2. Slices: how far back the answer is, rounded up to a power of two
/// ("distance").
///
/// Throws Error for an invalid value; `where` precedes the key in the message.
Task induction_task(const InductionConfig& config, const std::string& where = "");

TaskEntry induction_entry();

}  // namespace hopmix::tasks

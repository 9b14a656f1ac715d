// Induction heads: say again what followed.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct InductionConfig {
  int64_t vocabulary = 16;  // one of them is the special token; from 3
  int64_t length = 256;     // from 3
  std::string form = "special";
};

/// "special" ("Hungry Hungry Hippos", arXiv 2212.14052; sizes of "Mamba", arXiv 2312.00752):
/// symbols drawn uniformly, the special token V-1 at one place, uniform over 0..T-3, and again at
/// the end, where the target is the symbol that followed it. "bigram" ("In-context Learning and
/// Induction Heads", arXiv 2209.11895): symbols drawn uniformly, no special token; wherever a
/// symbol was seen before, the target is what followed it the last time. Takes T >= V, so that some
/// symbol is.
///
/// Symbols are 0..V-2. Slices: how far back the answer is, rounded up to a power of two
/// ("distance").
///
/// Throws Error for a bad value; `where` goes before the key in its message.
Task induction_task(const InductionConfig& config, const std::string& where = "");

TaskEntry induction_entry();

}  // namespace hopmix::tasks

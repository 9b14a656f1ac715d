// Function composition: compose functions written one after the other, one hop per function.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct FunctionCompositionConfig {
  int64_t functions = 5;  // F, at least 2
  int64_t least_n = 25;   // n is drawn from least_n to most_n, once per batch
  int64_t most_n = 30;
  int64_t labels = 0;  // function names; a text uses a consecutive run of them. 0: as many as
                       // functions, so that f_1 always has the same name
};

/// "Improving the Expressive Power of Hybrid Sequence Models via Multi-Hop Retrieval", equation 15.
/// Functions f_1, ..., f_F on [n], drawn uniformly, are written as f_1(1) ... f_1(n) f_2(1) ...
/// f_F(n). A token is a value, and carries the label of its function and the argument (the "index",
/// which shares the values' vocabulary). At the token of f_i(j), the target of readout m = 1 .. F-1
/// is
///
///   (f_{i-m} o ... o f_{i-1})(f_i(j)),    where i > m.
///
/// Slices: m ("composed"). The vocabulary is most_n. Throws Error for an invalid value; `where`
/// precedes the key in the message.
Task function_composition_task(const FunctionCompositionConfig& config,
                               const std::string& where = "");

TaskEntry function_composition_entry();

}  // namespace hopmix::tasks

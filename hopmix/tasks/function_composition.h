// Composition of functions written one after the other: as many hops as functions are composed.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct FunctionCompositionConfig {
  int64_t functions = 5;  // F, from 2
  int64_t least_n = 25;   // functions on [n]: n is drawn from least_n to most_n, one a batch
  int64_t most_n = 30;
  int64_t labels = 0;  // names of functions: a text's are neighbours among them; 0: as many as
                       // functions, so that f_1 has always the same one
};

/// "Improving the Expressive Power of Hybrid Sequence Models via Multi-Hop Retrieval", equation 15.
/// Uniformly drawn f_1, ..., f_F on [n], written f_1(1) ... f_1(n) f_2(1) ... f_F(n). A token is
/// its value, and carries the function's label and the argument ("index", of the values' alphabet).
/// At the token of f_i(j) readout m = 1 .. F-1 is asked for
///
///   (f_{i-m} o ... o f_{i-1})(f_i(j)),    where i > m.
///
/// Slices: m ("composed"). The vocabulary is most_n. Throws Error for a bad value; `where` goes
/// before the key in its message.
Task function_composition_task(const FunctionCompositionConfig& config,
                               const std::string& where = "");

TaskEntry function_composition_entry();

}  // namespace hopmix::tasks

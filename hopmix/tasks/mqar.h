// Multi-query associative recall.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct MqarSize {
  int64_t length = 64;  // T, even
  int64_t pairs = 4;    // from 1 to length / 4
  int64_t weight = 1;   // batches of this size, over the sum of all weights
};

struct MqarConfig {
  int64_t vocabulary = 8192;  // even, from 4
  std::vector<MqarSize> sizes = {{}};
  double power_a = 0.01;           // above 0; 1 makes gaps uniform
  bool random_non_queries = true;  // random tokens where nothing is said, else 0
};

/// "Zoology: Measuring and Improving Recall in Efficient Language Models" (arXiv 2312.04927). A
/// sequence is `pairs` facts `key value`, then every key once more; there the target is its value.
/// Keys are of 1..V/2-1 and values of V/2..V-1, each drawn without replacement. The second half has
/// (T - 2 pairs) / 2 places, two tokens each: key after key takes one that is still free, place i
/// (from 1) with a probability proportional to i^(a-1).
///
/// A batch has one size, drawn by its seed. Slices: its number of pairs ("pairs").
///
/// Throws Error for a size out of range; `where` goes before the key in its message.
Task mqar_task(const MqarConfig& config, const std::string& where = "");

/// Reads "64:4*5, 128:8": length:pairs*weight, weight 1 unless said. Throws Error, naming `name`.
std::vector<MqarSize> parse_mqar_sizes(const std::string& text, const std::string& name);

TaskEntry mqar_entry();

}  // namespace hopmix::tasks

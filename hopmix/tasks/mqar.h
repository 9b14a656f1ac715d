// Multi-query associative recall.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct MqarSize {
  int64_t length = 64;  // T, even
  int64_t pairs = 4;    // 1 to length / 4
  int64_t weight = 1;   // relative frequency of batches of this size
};

struct MqarConfig {
  int64_t vocabulary = 8192;  // even, at least 4
  std::vector<MqarSize> sizes = {{}};
  double power_a = 0.01;           // above 0; 1 makes gaps uniform
  bool random_non_queries = true;  // fills gaps with random tokens, else with 0
};

/// "Zoology: Measuring and Improving Recall in Efficient Language Models" (arXiv 2312.04927). A
/// sequence is `pairs` facts `key value`, then every key once more, where the target is its value.
/// Keys are from 1..V/2-1 and values from V/2..V-1, each drawn without replacement. The second half
/// has (T - 2 pairs) / 2 slots of two tokens: each key in turn takes a free one, slot i (from 1)
/// with probability proportional to i^(a-1).
///
/// A batch has one size, drawn by its seed. Slices: its number of pairs ("pairs").
///
/// Throws Error for a size out of range; `where` precedes the key in the message.
Task mqar_task(const MqarConfig& config, const std::string& where = "");

/// Parses "64:4*5, 128:8": length:pairs*weight, with weight 1 by default. Throws Error naming
/// `name`.
std::vector<MqarSize> parse_mqar_sizes(const std::string& text, const std::string& name);

TaskEntry mqar_entry();

}  // namespace hopmix::tasks

// What was measured, as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hopmix/bench/measure.h"

namespace hopmix::bench {

struct Report {
  std::string suite = "operators";  // or "crossover", "long"
  Settings settings;
  nlohmann::ordered_json machine;
  std::vector<Level> levels;
  std::vector<Result> results;
  std::vector<LeftOut> left_out;
  double seconds = 0;  // that all of it took
  bool interrupted = false;
};

/// A table for each shape and direction: medians, tokens a second, ratios to the peers, useful
/// bytes a second beside what this machine can load, memory.
std::string tables(const Report& report);

/// A table for each direction: how many times as fast as attention at each length, and the length
/// from which on it is faster. Of one batch size, number of heads and width.
std::string crossover_tables(const Report& report);

/// What the machine can load, by level.
std::string level_table(const std::vector<Level>& levels);

/// A line for each length at which something was left out.
std::string left_out_lines(const std::vector<LeftOut>& left_out);

/// {"suite", "machine", "settings", "seconds", "interrupted", "levels": [...], "results": [...],
/// "crossover": [...], "left_out": [...]}. What does not apply is null.
nlohmann::ordered_json to_json(const Report& report);

/// The lengths of `report` in rising order, each once.
std::vector<int64_t> lengths_of(const Report& report);

/// "float32", "bfloat16".
std::string dtype_name(at::ScalarType dtype);

}  // namespace hopmix::bench

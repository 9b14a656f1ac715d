// Benchmark reports as text and as JSON.
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
  double seconds = 0;  // total duration
  bool interrupted = false;
};

/// A table per shape and direction: medians, tokens per second, ratios to the peers, bandwidth
/// compared with what this machine can load, memory.
std::string tables(const Report& report);

/// A table per direction: the speed relative to attention at each length, and the length from which
/// it stays faster. The results must share batch size, heads and width.
std::string crossover_tables(const Report& report);

/// The load bandwidth of the machine, by level.
std::string level_table(const std::vector<Level>& levels);

/// One line per case and length that was left out.
std::string left_out_lines(const std::vector<LeftOut>& left_out);

/// {"suite", "machine", "settings", "seconds", "interrupted", "levels": [...], "results": [...],
/// "crossover": [...], "left_out": [...]}. Values that do not apply are null.
nlohmann::ordered_json to_json(const Report& report);

/// The distinct lengths of `report`, ascending.
std::vector<int64_t> lengths_of(const Report& report);

/// "float32", "bfloat16".
std::string dtype_name(at::ScalarType dtype);

}  // namespace hopmix::bench

// Compares a decoding step with the time to stream its weights and its state once.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hopmix/bench/decode.h"

namespace hopmix::bench {

struct ReadResult {
  std::string name;
  int64_t bytes = 0;               // of the weights and the state
  double seconds = 0;              // per step
  double read = 0, rewritten = 0;  // time to load these bytes in order; to load and store them

  double over_read() const { return seconds / read; }
  double over_rewritten() const { return seconds / rewritten; }
};

/// One token with ops::matrix_step_, for each kind of gate, on states of 64 KiB (4 heads of 64 by
/// 64) and 2 MiB (32 heads of 128 by 128), float32.
std::vector<ReadResult> measure_matrix_steps(const Settings& settings, const Hooks& hooks);

/// One step of four-layer models of `cases`, width 256 (4 heads, MLP of twice the width), after a
/// prompt of `length` random bytes. A step reads all weights except the embedding.
std::vector<ReadResult> measure_model_steps(const std::vector<DecodeCase>& cases, int64_t length,
                                            const Settings& settings, const Hooks& hooks);

std::string read_table(const std::vector<ReadResult>& results, const std::string& title);
nlohmann::ordered_json to_json(const std::vector<ReadResult>& results);

}  // namespace hopmix::bench

// How long a step of decoding takes against reading what it cannot do without, once.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hopmix/bench/decode.h"

namespace hopmix::bench {

struct ReadResult {
  std::string name;
  int64_t bytes = 0;               // of the weights and the state
  double seconds = 0;              // a step
  double read = 0, rewritten = 0;  // loads of those bytes in order; the same with a store of each

  double over_read() const { return seconds / read; }
  double over_rewritten() const { return seconds / rewritten; }
};

/// One token by ops::matrix_step_, gates of each kind, on states of 64 KiB (4 heads of 64 by 64)
/// and 2 MiB (32 heads of 128 by 128), float32.
std::vector<ReadResult> measure_matrix_steps(const Settings& settings, const Hooks& hooks);

/// A step of models of four layers of width 256 (4 heads, MLP of twice the width) of `cases` after
/// a prompt of `length` random bytes. Their weights are what a step reads: without the embedding.
std::vector<ReadResult> measure_model_steps(const std::vector<DecodeCase>& cases, int64_t length,
                                            const Settings& settings, const Hooks& hooks);

std::string read_table(const std::vector<ReadResult>& results, const std::string& title);
nlohmann::ordered_json to_json(const std::vector<ReadResult>& results);

}  // namespace hopmix::bench

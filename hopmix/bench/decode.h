// Measures the time of one decoding step, and the size of its state, against the length of the
// context.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hopmix/bench/measure.h"

namespace hopmix::bench {

/// The case that the others' ratios refer to.
inline constexpr const char* kFullAttention = "attention";

/// A stack of layers to decode with.
struct DecodeCase {
  std::string name;
  std::string blocks;        // TOML: an array of tables, each with a mixer and its keys
  std::string pattern = "";  // which tokens the layers keep; empty: none
  bool bounded = true;       // the state stays small; otherwise timed up to kLongestFull tokens
};
inline constexpr int64_t kLongestFull = int64_t{1} << 16;

std::vector<DecodeCase> decode_cases();

struct DecodeShape {
  int64_t heads = 4, width = 16;  // width per head; the layers are heads * width wide
  std::vector<int64_t> lengths;
};

struct DecodeResult {
  std::string name;
  int64_t length = 0;              // tokens of context
  std::vector<double> times = {};  // seconds per token, by repetition
  double seconds = 0;              // their median
  int64_t state_bytes = 0;         // of all layers, one sequence
};

/// Times steps of one sequence, with all cases and lengths interleaved at random. The context is
/// never read: the states are filled with as many random entries as they would hold
/// (nn/pattern_cache.h). Returns fewer results, or none, if stopped. Threads and repetitions come
/// from `settings`.
std::vector<DecodeResult> measure_decoding(const std::vector<DecodeCase>& cases,
                                           const DecodeShape& shape, const Settings& settings,
                                           const Hooks& hooks);

/// A prompt read from an empty state.
struct PromptResult {
  std::string name;
  int64_t length = 0;
  double prefill = 0, steps = 0;  // median seconds per token: all at once, and token by token

  double faster() const { return steps / prefill; }
};

/// Times prompts of `length` tokens both ways, interleaved at random.
std::vector<PromptResult> measure_prompts(const std::vector<DecodeCase>& cases,
                                          const DecodeShape& shape, int64_t length,
                                          const Settings& settings, const Hooks& hooks);

/// Tables of microseconds per token and bytes of state, with a row per case and a column per
/// length, and their ratio to full attention.
std::string decode_tables(const std::vector<DecodeResult>& results);

std::string prompt_table(const std::vector<PromptResult>& results);
nlohmann::ordered_json to_json(const std::vector<PromptResult>& results);

/// A JSON array; `faster` and `smaller` compare with full attention at the same length, null
/// without it.
nlohmann::ordered_json to_json(const std::vector<DecodeResult>& results);

/// Plots time and bytes against length, both logarithmic, one line per case, as .svg or .png.
void plot_decoding(const std::vector<DecodeResult>& results, const std::filesystem::path& output);

}  // namespace hopmix::bench

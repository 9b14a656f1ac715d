// How long one more token takes, and what is kept for it, against the length of the text behind.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hopmix/bench/measure.h"

namespace hopmix::bench {

/// The layer of others' ratios.
inline constexpr const char* kFullAttention = "attention";

/// Layers that decode, one behind another.
struct DecodeCase {
  std::string name;
  std::string blocks;        // TOML: an array of tables, each with a mixer and its keys
  std::string pattern = "";  // of what the layers keep for each token; empty: nothing
  bool bounded = true;       // whether what is kept stays small: else up to kLongestFull tokens
};
inline constexpr int64_t kLongestFull = int64_t{1} << 16;

std::vector<DecodeCase> decode_cases();

struct DecodeShape {
  int64_t heads = 4, width = 16;  // of a head; the layers are heads * width wide
  std::vector<int64_t> lengths;
};

struct DecodeResult {
  std::string name;
  int64_t length = 0;              // tokens behind
  std::vector<double> times = {};  // seconds a token, by repetition
  double seconds = 0;              // their median
  int64_t state_bytes = 0;         // of all layers, one sequence
};

/// Times steps of one sequence, all cases and lengths mixed at random. The tokens behind were never
/// taken in: the states are filled with random entries (nn/past.h), as many as there would be.
/// Fewer results, or none, if stopped. Threads and repetitions come from `settings`.
std::vector<DecodeResult> measure_decoding(const std::vector<DecodeCase>& cases,
                                           const DecodeShape& shape, const Settings& settings,
                                           const Hooks& hooks);

/// A prompt taken in from an empty state.
struct PromptResult {
  std::string name;
  int64_t length = 0;
  double prefill = 0, steps = 0;  // seconds a token, medians: at once, and token by token

  double faster() const { return steps / prefill; }
};

/// Times prompts of `length` tokens both ways, all mixed at random.
std::vector<PromptResult> measure_prompts(const std::vector<DecodeCase>& cases,
                                          const DecodeShape& shape, int64_t length,
                                          const Settings& settings, const Hooks& hooks);

/// Microseconds a token and bytes, a row for each case and a column for each length; what they are
/// to full attention's.
std::string decode_tables(const std::vector<DecodeResult>& results);

std::string prompt_table(const std::vector<PromptResult>& results);
nlohmann::ordered_json to_json(const std::vector<PromptResult>& results);

/// A list; `faster` and `smaller` are to full attention at the same length, null without it.
nlohmann::ordered_json to_json(const std::vector<DecodeResult>& results);

/// Time and bytes against length, both logarithmic, a line for each case, as .svg or .png.
void plot_decoding(const std::vector<DecodeResult>& results, const std::filesystem::path& output);

}  // namespace hopmix::bench

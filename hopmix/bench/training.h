// Measures how fast models train, and profiles a training step.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hopmix/bench/measure.h"
#include "hopmix/bench/profile.h"
#include "hopmix/config/config.h"

namespace hopmix::bench {

/// A model to train, described by a config.
struct TrainingCase {
  std::string name;
  toml::table config;
};

struct TrainingResult {
  std::string name, task;
  int64_t parameters = 0, batch = 0, length = 0;
  std::vector<double> times;            // seconds per step, by repetition
  double seconds = 0;                   // their median
  double evaluation = 0;                // seconds per evaluation batch
  std::map<std::string, Phase> phases;  // of one step, on average

  double steps_per_second() const { return 1 / seconds; }
  double tokens_per_second() const { return static_cast<double>(batch * length) / seconds; }
};

/// Times steps of the training loop (data, forward, backward, optimizer; without checkpoints and
/// logs), with the cases interleaved at random. Returns fewer results, or none, if stopped. Threads
/// and repetitions come from `settings`.
std::vector<TrainingResult> measure_training(const std::vector<TrainingCase>& cases,
                                             const Settings& settings, const Hooks& hooks);

/// Tables of steps per second, phases in percent of the step, and the most expensive operators.
std::string training_tables(const std::vector<TrainingResult>& results);

nlohmann::ordered_json to_json(const TrainingResult& result);

}  // namespace hopmix::bench

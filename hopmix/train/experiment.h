// An experiment described by a TOML config: a task, a model and how to train it.
#pragma once

#include <memory>
#include <string>

#include "hopmix/config/config.h"
#include "hopmix/nn/model.h"
#include "hopmix/tasks/task.h"
#include "hopmix/train/inputs.h"

namespace hopmix::train {

/// The `[train]` table.
struct TrainConfig {
  int64_t steps = 500;
  int64_t batch = 64;
  double lr = 4e-3;
  int64_t warmup = 50;         // steps of linear warm-up, followed by cosine decay to 0
  double weight_decay = 0.01;  // on matrices only
  double beta1 = 0.9, beta2 = 0.98;
  double clip = 1.0;  // largest gradient norm; 0 disables clipping
  std::string precision =
      "float32";           // "bfloat16": matrix products under autocast, parameters stay float32
  int64_t log_every = 10;  // steps between lines of metrics.jsonl
  int64_t checkpoint_every = 250;  // steps between checkpoints; one is always written at the end
  int64_t eval_batches = 16;       // fresh batches of `batch` sequences to evaluate on
};

/// A resolved experiment. `config` holds every key with its value, defaults included.
struct Experiment {
  int64_t seed = 0;
  int64_t threads = 0;  // 0: PyTorch's default
  TrainConfig train;
  tasks::Task task;
  std::shared_ptr<nn::LanguageModel> model;
  Inputs inputs;  // what it reads and a run directory does not keep
  toml::table config;
};

/// Reads the document, seeds PyTorch's generator and builds the model. Throws Error on an unknown
/// key (suggesting the nearest known one) or an invalid value.
Experiment make_experiment(toml::table document);

/// The learning rate of step `step` (from 0): lr (step + 1) / warmup in the first `warmup` steps,
/// then lr (1 + cos(pi t)) / 2 with t = (step - warmup) / (steps - warmup).
double learning_rate(const TrainConfig& config, int64_t step);

/// The seed of one batch: mixes the run's seed, the stream ("train", "eval") and the step, so that
/// the data of a step does not depend on earlier steps.
uint64_t batch_seed(int64_t seed, std::string_view stream, int64_t step);

}  // namespace hopmix::train

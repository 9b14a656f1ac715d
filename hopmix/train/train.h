// The training loop and evaluation.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "hopmix/train/experiment.h"
#include "hopmix/train/optimizer.h"
#include "hopmix/train/score.h"

namespace hopmix::train {

struct TrainResult {
  int64_t step = 0;          // the last step taken
  bool interrupted = false;  // stopped by a signal, after saving
  Score score;               // on fresh data; empty if interrupted
  double seconds = 0;        // duration of this call
};

/// Trains `experiment` in the run directory `run`, from its last checkpoint if `resume`. A run that
/// is stopped at any moment and resumed, on the same machine with the same number of threads, has
/// bit-identical losses. The last line of metrics.jsonl holds the final score. Throws Error if the
/// directory exists and `resume` is false, if its config or a file it names differs, on weights
/// that are not finite when a checkpoint is due, or on a failed write.
TrainResult train(Experiment& experiment, const std::filesystem::path& run, bool resume,
                  bool quiet);

/// One step of training.
struct StepResult {
  tasks::Batch batch;
  torch::Tensor rows;  // the positions where the batch asks
  nn::Scored scored;   // the model's scores at these rows
  double lr = 0, grad_norm = 0;
};

/// Runs step `step` (from 0) of `experiment`: its data, forward, backward and parameter update.
/// Each phase is a scope that PyTorch's profilers see: "data", "forward", "backward", "clip",
/// "optimizer". Throws Error if the gradient is not finite.
StepResult train_step(Experiment& experiment, torch::optim::AdamW& optimizer, int64_t step);

/// Loads the weights of `run` into an experiment of its config, and returns the step. Throws Error
/// if a file that both name has changed since the run began.
int64_t load_run(const std::filesystem::path& run, Experiment& experiment);

/// Evaluates on `train.eval_batches` fresh batches, whose seeds no training batch uses; for a text,
/// on the held-out part. Throws Error if the loss is not finite.
Score evaluate(Experiment& experiment);

/// {"loss", "accuracy", "slices": {"depth 0": 99.1, ...}}, in percent; "bits_per_byte" of a text.
nlohmann::json to_json(const Score& score, const std::string& slice_name);

}  // namespace hopmix::train

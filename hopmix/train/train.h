// The training loop and the measurement of accuracy.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "hopmix/train/experiment.h"
#include "hopmix/train/optimizer.h"
#include "hopmix/train/score.h"

namespace hopmix::train {

struct TrainResult {
  int64_t step = 0;          // reached
  bool interrupted = false;  // by a signal, after saving
  Score score;               // on fresh data, unless interrupted
  double seconds = 0;        // of this call
};

/// Trains `experiment` in the run directory `run`, from its last checkpoint if `resume`. A run that
/// was stopped at any moment and resumed (same machine, same thread count) gives bit-identical
/// losses. The last line of metrics.jsonl holds the final score. Throws Error if the directory
/// exists and `resume` is false, if its config differs, or on a failed write.
TrainResult train(Experiment& experiment, const std::filesystem::path& run, bool resume,
                  bool quiet);

/// One step of training.
struct StepResult {
  tasks::Batch batch;
  torch::Tensor rows;  // where the batch asks
  nn::Scored scored;   // at these rows
  double lr = 0, grad_norm = 0;
};

/// Step `step` (from 0) of `experiment`: its data, forward, backward and the change of the
/// parameters. Each is a scope that PyTorch's profilers see: "data", "forward", "backward", "clip",
/// "optimizer". Throws Error if the gradient is not finite.
StepResult train_step(Experiment& experiment, torch::optim::AdamW& optimizer, int64_t step);

/// Accuracy on `train.eval_batches` fresh batches, whose seeds no training batch has; of a text, on
/// what is held out.
Score evaluate(Experiment& experiment);

/// {"loss", "accuracy", "slices": {"depth 0": 99.1, ...}}, in percent; "bits_per_byte" of a text.
nlohmann::json to_json(const Score& score, const std::string& slice_name);

}  // namespace hopmix::train

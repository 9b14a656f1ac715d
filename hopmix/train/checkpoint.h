// A run directory: config.toml (as resolved), metrics.jsonl, model.safetensors,
// optimizer.safetensors, state.json.
#pragma once

#include "hopmix/nn/torch.h"

#include <filesystem>

#include "hopmix/train/experiment.h"

namespace hopmix::train {

/// Writes the three files of a checkpoint so that a kill or a full disk at any moment leaves either
/// the old checkpoint or the new one: both tensor files are written as FILE.next, state.json's
/// rename commits, then the .next files take their places (load_checkpoint finishes that if the
/// writer could not). Throws Error on a failed write.
void save_checkpoint(const std::filesystem::path& run, const nn::LanguageModel& model,
                     torch::optim::AdamW& optimizer, int64_t step);

/// Loads model and optimizer to train on (hold the RunLock); returns the step. Throws Error on a
/// missing, truncated or mismatched file.
int64_t load_checkpoint(const std::filesystem::path& run, nn::LanguageModel& model,
                        torch::optim::AdamW& optimizer);

/// Loads the weights alone; returns the step. Changes no file, and may be called while another
/// process trains the run.
int64_t load_weights(const std::filesystem::path& run, nn::LanguageModel& model);

}  // namespace hopmix::train

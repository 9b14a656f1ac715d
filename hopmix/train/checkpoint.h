// Checkpoints. A run directory holds config.toml (resolved), metrics.jsonl, model.safetensors,
// optimizer.safetensors and state.json.
#pragma once

#include "hopmix/nn/torch.h"

#include <filesystem>

#include "hopmix/train/experiment.h"

namespace hopmix::train {

/// Writes the three files of a checkpoint so that a kill or a full disk at any moment leaves either
/// the old checkpoint or the new one. Both tensor files are written as FILE.next, renaming
/// state.json commits, and then the .next files replace the old ones; load_checkpoint finishes
/// these renames if the writer was killed. Throws Error on a failed write and, before it writes
/// anything, if a weight or a moment is not finite.
void save_checkpoint(const std::filesystem::path& run, const nn::LanguageModel& model,
                     torch::optim::AdamW& optimizer, int64_t step);

/// Loads model and optimizer to continue training (hold the RunLock); returns the step. Throws
/// Error if a file is missing, truncated or damaged, or does not have exactly the tensors of this
/// model, with their types and shapes and finite numbers.
int64_t load_checkpoint(const std::filesystem::path& run, nn::LanguageModel& model,
                        torch::optim::AdamW& optimizer);

/// Loads the weights only, with the same checks; returns the step. Changes no file, so it is safe
/// while another process trains the run.
int64_t load_weights(const std::filesystem::path& run, nn::LanguageModel& model);

}  // namespace hopmix::train

// Loss and accuracy over the tokens that a batch asks for.
#pragma once

#include "hopmix/nn/torch.h"

#include <map>
#include <numbers>
#include <optional>

#include "hopmix/nn/model.h"
#include "hopmix/tasks/task.h"

namespace hopmix::train {

/// Right answers out of those asked.
struct Count {
  int64_t right = 0, asked = 0;
  double percent() const {
    return asked ? 100.0 * static_cast<double>(right) / static_cast<double>(asked) : 0.0;
  }
};

/// The score of a set of batches.
struct Score {
  Count all;
  std::map<int64_t, Count> slices;  // by slice (depth, ...), where the task has any
  double loss_sum = 0;              // over asked tokens, in nats
  double bytes = 0;                 // of text that the asked tokens stand for; 0 without text
  double loss() const { return all.asked ? loss_sum / static_cast<double>(all.asked) : 0.0; }
  double bits_per_byte() const { return bytes > 0 ? loss_sum / std::numbers::ln2 / bytes : 0.0; }
};

/// Where a batch asks (target != kNoTarget): int64 [n], positions of the flattened targets. Only
/// these are scored below: most tokens of a recall task ask nothing.
torch::Tensor asked_rows(const tasks::Batch& batch);

/// What is right at these rows: int64 [n].
torch::Tensor asked_targets(const tasks::Batch& batch, const torch::Tensor& rows);

/// The share of each row in what training lowers, float32 [n]: the cross entropy of each readout,
/// averaged over those asked, so that an answer that is asked more seldom counts as much. None with
/// one readout: the mean.
std::optional<torch::Tensor> row_weights(const tasks::Batch& batch, const torch::Tensor& rows);

/// Adds one batch to `score`.
void add_batch(const nn::Scored& scored, const tasks::Batch& batch, const torch::Tensor& rows,
               Score& score);

}  // namespace hopmix::train

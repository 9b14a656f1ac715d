// Loss and accuracy over the tokens that a batch asks for.
#pragma once

#include "hopmix/nn/torch.h"

#include <map>
#include <numbers>
#include <optional>

#include "hopmix/nn/model.h"
#include "hopmix/tasks/task.h"

namespace hopmix::train {

/// Correct answers out of those asked for.
struct Count {
  int64_t right = 0, asked = 0;
  double percent() const {
    return asked ? 100.0 * static_cast<double>(right) / static_cast<double>(asked) : 0.0;
  }
};

/// The score of a set of batches.
struct Score {
  Count all;
  std::map<int64_t, Count> slices;  // by slice, such as depth, if the task has slices
  double loss_sum = 0;              // over asked tokens, in nats
  double bytes = 0;                 // of the text that the asked tokens encode; 0 if none
  double loss() const { return all.asked ? loss_sum / static_cast<double>(all.asked) : 0.0; }
  double bits_per_byte() const { return bytes > 0 ? loss_sum / std::numbers::ln2 / bytes : 0.0; }
};

/// The positions where a batch asks (target != kNoTarget), as int64 [n] indices into the flattened
/// targets. Only these are scored: most tokens of a recall task ask nothing.
torch::Tensor asked_rows(const tasks::Batch& batch);

/// The targets at these rows: int64 [n].
torch::Tensor asked_targets(const tasks::Batch& batch, const torch::Tensor& rows);

/// The weight of each row in the training loss, float32 [n]. The loss is the mean over readouts of
/// the mean cross entropy of each, so that a readout that is asked less often counts as much. None
/// with one readout: a plain mean.
std::optional<torch::Tensor> row_weights(const tasks::Batch& batch, const torch::Tensor& rows);

/// Adds one batch to `score`.
void add_batch(const nn::Scored& scored, const tasks::Batch& batch, const torch::Tensor& rows,
               Score& score);

}  // namespace hopmix::train

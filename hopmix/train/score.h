// Loss and accuracy over the tokens that a batch asks for.
#pragma once

#include "hopmix/nn/torch.h"

#include <map>
#include <numbers>

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
/// these have logits below: most tokens of a recall task ask nothing.
torch::Tensor asked_rows(const tasks::Batch& batch);

/// Mean cross entropy over the asked tokens: logits [n,V] -> scalar, float32.
torch::Tensor cross_entropy(const torch::Tensor& logits, const tasks::Batch& batch,
                            const torch::Tensor& rows);

/// What training lowers: the cross entropy of each readout, averaged over those asked, so that an
/// answer that is asked more seldom counts as much. The same as cross_entropy with one readout.
torch::Tensor training_loss(const torch::Tensor& logits, const tasks::Batch& batch,
                            const torch::Tensor& rows);

/// Adds one batch to `score`.
void add_batch(const torch::Tensor& logits, const tasks::Batch& batch, const torch::Tensor& rows,
               Score& score);

}  // namespace hopmix::train

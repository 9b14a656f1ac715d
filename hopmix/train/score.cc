#include "hopmix/train/score.h"

namespace hopmix::train {

torch::Tensor asked_rows(const tasks::Batch& batch) {
  return (batch.targets.flatten() != tasks::kNoTarget).nonzero().squeeze(1);
}

torch::Tensor asked_targets(const tasks::Batch& batch, const torch::Tensor& rows) {
  return batch.targets.flatten().index_select(0, rows);
}

std::optional<torch::Tensor> row_weights(const tasks::Batch& batch, const torch::Tensor& rows) {
  if (batch.targets.dim() == 2) return std::nullopt;
  const int64_t readouts = batch.targets.size(2);
  const torch::Tensor readout = rows.remainder(readouts);
  const torch::Tensor counts = torch::bincount(readout, {}, readouts);
  const torch::Tensor weights = counts.ne(0).to(torch::kFloat32) /
                                (counts.clamp_min(1) * counts.ne(0).sum()).to(torch::kFloat32);
  return weights.index_select(0, readout);
}

void add_batch(const nn::Scored& scored, const tasks::Batch& batch, const torch::Tensor& rows,
               Score& score) {
  const torch::Tensor targets = asked_targets(batch, rows);
  const torch::Tensor slices = batch.slices.flatten().index_select(0, rows);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const int64_t* guess = scored.guesses.const_data_ptr<int64_t>();
  const int64_t* slice = slices.const_data_ptr<int64_t>();
  const int64_t asked = rows.numel();
  for (int64_t i = 0; i < asked; ++i) {
    const int64_t right = target[i] == guess[i];
    score.all.asked += 1;
    score.all.right += right;
    if (slice[i] >= 0) {
      score.slices[slice[i]].asked += 1;
      score.slices[slice[i]].right += right;
    }
  }
  score.loss_sum += scored.losses.sum(torch::kFloat64).item<double>();
}

}  // namespace hopmix::train

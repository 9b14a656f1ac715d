#include "hopmix/train/score.h"

namespace hopmix::train {

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& targets) {
  // Only the asked rows are normalized: most tokens of a recall task ask nothing.
  const torch::Tensor asked = (targets.flatten() != tasks::kNoTarget).nonzero().squeeze(1);
  return torch::cross_entropy_loss(logits.flatten(0, 1).index_select(0, asked).to(torch::kFloat32),
                                   targets.flatten().index_select(0, asked));
}

void add_batch(const torch::Tensor& logits, const tasks::Batch& batch, Score& score) {
  const torch::Tensor targets = batch.targets.flatten().contiguous();
  const torch::Tensor guesses = logits.argmax(-1).flatten().contiguous();
  const torch::Tensor slices = batch.slices.flatten().contiguous();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const int64_t* guess = guesses.const_data_ptr<int64_t>();
  const int64_t* slice = slices.const_data_ptr<int64_t>();
  int64_t asked = 0;
  for (int64_t i = 0; i < targets.numel(); ++i) {
    if (target[i] == tasks::kNoTarget) continue;
    ++asked;
    const int64_t right = target[i] == guess[i];
    score.all.asked += 1;
    score.all.right += right;
    if (slice[i] >= 0) {
      score.slices[slice[i]].asked += 1;
      score.slices[slice[i]].right += right;
    }
  }
  score.loss_sum +=
      cross_entropy(logits, batch.targets).item<double>() * static_cast<double>(asked);
}

}  // namespace hopmix::train

// AdamW with weight decay on matrices only, and its state as named tensors.
#pragma once

#include "hopmix/nn/torch.h"

#include <map>
#include <memory>
#include <string>

#include "hopmix/train/experiment.h"

namespace hopmix::train {

/// AdamW over the model's parameters. `weight_decay` applies to those with two or more dimensions.
std::unique_ptr<torch::optim::AdamW> make_optimizer(const nn::LanguageModel& model,
                                                    const TrainConfig& config);

void set_learning_rate(torch::optim::AdamW& optimizer, double lr);

/// Scales the gradients of all parameters so that their total norm is at most `limit`; returns the
/// norm before scaling.
double clip_gradients(torch::optim::AdamW& optimizer, double limit);

/// Equivalent to optimizer.step(), with all parameters of a group in one kernel.
void take_step(torch::optim::AdamW& optimizer);

/// The moments of every parameter, as "NAME.exp_avg" and "NAME.exp_avg_sq". The step count is
/// stored with the run.
std::map<std::string, torch::Tensor> optimizer_state(torch::optim::AdamW& optimizer,
                                                     const nn::LanguageModel& model);

/// Restores the moments as of `step`. Throws Error if a tensor is missing, superfluous, of another
/// type or shape, or not finite.
void load_optimizer_state(const std::map<std::string, torch::Tensor>& tensors, int64_t step,
                          const nn::LanguageModel& model, torch::optim::AdamW& optimizer);

}  // namespace hopmix::train

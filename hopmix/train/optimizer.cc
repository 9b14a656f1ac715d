#include "hopmix/train/optimizer.h"

namespace hopmix::train {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

std::unique_ptr<torch::optim::AdamW> make_optimizer(const nn::LanguageModel& model,
                                                    const TrainConfig& config) {
  std::vector<torch::Tensor> matrices, vectors;
  for (const torch::Tensor& parameter : model.parameters()) {
    (parameter.dim() >= 2 ? matrices : vectors).push_back(parameter);
  }
  const AdamWOptions options =
      AdamWOptions(config.lr).betas({config.beta1, config.beta2}).eps(1e-8);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<AdamWOptions>(
                                    AdamWOptions(options).weight_decay(config.weight_decay)));
  groups.emplace_back(vectors,
                      std::make_unique<AdamWOptions>(AdamWOptions(options).weight_decay(0)));
  return std::make_unique<torch::optim::AdamW>(groups, options);
}

void set_learning_rate(torch::optim::AdamW& optimizer, double lr) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    group.options().set_lr(lr);
  }
}

std::map<std::string, torch::Tensor> optimizer_state(torch::optim::AdamW& optimizer,
                                                     const nn::LanguageModel& model) {
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& item : model.named_parameters()) {
    const auto found = optimizer.state().find(item.value().unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;  // before its first step
    const auto& state = static_cast<const AdamWParamState&>(*found->second);
    tensors[item.key() + ".exp_avg"] = state.exp_avg();
    tensors[item.key() + ".exp_avg_sq"] = state.exp_avg_sq();
  }
  return tensors;
}

void load_optimizer_state(const std::map<std::string, torch::Tensor>& tensors, int64_t step,
                          const nn::LanguageModel& model, torch::optim::AdamW& optimizer) {
  if (step == 0) return;
  for (const auto& item : model.named_parameters()) {
    auto state = std::make_unique<AdamWParamState>();
    const auto moment = [&](const std::string& name) {
      const auto found = tensors.find(item.key() + name);
      if (found == tensors.end() || found->second.sizes() != item.value().sizes()) {
        throw Error("optimizer state of '" + item.key() + "': " + name.substr(1) +
                    (found == tensors.end() ? " is missing" : " has another shape") +
                    "; the checkpoint is of another model");
      }
      return found->second.clone();
    };
    state->step(step);
    state->exp_avg(moment(".exp_avg"));
    state->exp_avg_sq(moment(".exp_avg_sq"));
    optimizer.state()[item.value().unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace hopmix::train

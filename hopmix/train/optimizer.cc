#include "hopmix/train/optimizer.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>

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

double clip_gradients(torch::optim::AdamW& optimizer, double limit) {
  std::vector<torch::Tensor> gradients;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    }
  }
  if (gradients.empty()) return 0;
  const double norm = torch::stack(at::_foreach_norm(gradients, 2)).norm().item<double>();
  if (norm > limit) at::_foreach_mul_(gradients, limit / (norm + 1e-6));
  return norm;
}

void take_step(torch::optim::AdamW& optimizer) {
  const torch::NoGradGuard no_grad;
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    std::vector<torch::Tensor> parameters, gradients, means, squares, steps;
    for (const torch::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      std::unique_ptr<torch::optim::OptimizerParamState>& slot =
          optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (!slot) {
        auto fresh = std::make_unique<AdamWParamState>();
        fresh->step(0);
        fresh->exp_avg(torch::zeros_like(parameter));
        fresh->exp_avg_sq(torch::zeros_like(parameter));
        slot = std::move(fresh);
      }
      auto& state = static_cast<AdamWParamState&>(*slot);
      state.step(state.step() + 1);
      parameters.push_back(parameter);
      gradients.push_back(parameter.grad());
      means.push_back(state.exp_avg());
      squares.push_back(state.exp_avg_sq());
      steps.push_back(torch::scalar_tensor(state.step(), torch::kFloat32));
    }
    if (parameters.empty()) continue;
    const auto& options = static_cast<const AdamWOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    at::_fused_adamw_(parameters, gradients, means, squares, /*max_exp_avg_sqs=*/{}, steps,
                      options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
                      /*amsgrad=*/false, /*maximize=*/false);
  }
}

std::map<std::string, torch::Tensor> optimizer_state(torch::optim::AdamW& optimizer,
                                                     const nn::LanguageModel& model) {
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& item : model.named_parameters()) {
    const auto found = optimizer.state().find(item.value().unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;  // it has not taken a step yet
    const auto& state = static_cast<const AdamWParamState&>(*found->second);
    tensors[item.key() + ".exp_avg"] = state.exp_avg();
    tensors[item.key() + ".exp_avg_sq"] = state.exp_avg_sq();
  }
  return tensors;
}

void load_optimizer_state(const std::map<std::string, torch::Tensor>& tensors, int64_t step,
                          const nn::LanguageModel& model, torch::optim::AdamW& optimizer) {
  const size_t expected = step == 0 ? 0 : 2 * model.named_parameters().size();
  if (tensors.size() > expected) {
    throw Error("optimizer state: has " + std::to_string(tensors.size()) +
                " tensors, but the model needs " + std::to_string(expected) +
                "; the checkpoint was saved by a different model");
  }
  if (step == 0) return;
  for (const auto& item : model.named_parameters()) {
    auto state = std::make_unique<AdamWParamState>();
    const auto moment = [&](const std::string& name) {
      const auto found = tensors.find(item.key() + name);
      if (found == tensors.end() || found->second.sizes() != item.value().sizes()) {
        throw Error("optimizer state of '" + item.key() + "': " + name.substr(1) +
                    (found == tensors.end() ? " is missing" : " has a different shape") +
                    "; the checkpoint was saved by a different model");
      }
      const torch::Tensor& read = found->second;
      const bool squares = name == ".exp_avg_sq";
      if (read.scalar_type() != item.value().scalar_type() || !read.isfinite().all().item<bool>() ||
          (squares && (read < 0).any().item<bool>())) {
        throw Error("optimizer state of '" + item.key() + "': " + name.substr(1) + " must be " +
                    c10::toString(item.value().scalar_type()) + " and finite" +
                    (squares ? ", and at least 0" : ""));
      }
      return read.clone();
    };
    state->step(step);
    state->exp_avg(moment(".exp_avg"));
    state->exp_avg_sq(moment(".exp_avg_sq"));
    optimizer.state()[item.value().unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace hopmix::train

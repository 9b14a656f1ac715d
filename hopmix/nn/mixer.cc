#include "hopmix/nn/mixer.h"

#include "hopmix/nn/by_sequence.h"
#include "hopmix/nn/recurrent_state.h"

namespace hopmix::nn {
namespace {

// Stacks the states of several sequences into one of a batch, by copying.
State stack(std::span<State* const> states) {
  State all;
  for (const auto& [name, first] : states[0]->tensors) {
    std::vector<Tensor> parts;
    for (const State* state : states) parts.push_back(state->tensors.at(name));
    all.tensors[name] = torch::cat(parts);
  }
  return all;
}

}  // namespace

int64_t State::bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.numel() * tensor.element_size();
  return total;
}

void make_own(Tensor& tensor) {
  if (tensor.use_count() > 1 || tensor.storage().use_count() > 1) tensor = tensor.clone();
}

torch::TensorOptions state_options(const torch::TensorOptions& parameters, StateType type) {
  if (type == StateType::kPositions) return parameters.dtype(torch::kInt32);
  if (type == StateType::kParameters) return parameters;
  return parameters.dtype(state_type(c10::typeMetaToScalarType(parameters.dtype())));
}

void Mixer::keep(const StateParts& parts) {
  for (const auto& [name, part] : parts) kept_[name] = part;
}

State Mixer::initial_state(int64_t batch) const {
  State state;
  for (const auto& [name, part] : kept_) {
    std::vector<int64_t> sizes = {batch};
    sizes.insert(sizes.end(), part.sizes.begin(), part.sizes.end());
    state.tensors[name] = torch::zeros(sizes, state_options(options(), part.type));
  }
  return state;
}

int64_t Mixer::state_bytes(int64_t) const { return initial_state(1).bytes(); }

Tensor Mixer::step(const Tensor& x, State& state, Context& context) {
  return prefill(x.unsqueeze(1), state, context).squeeze(1);
}

Tensor Mixer::prefill(const Tensor& x, State& state, Context& context) {
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < x.size(1); ++t) outputs.push_back(step(x.select(1, t), state, context));
  return torch::stack(outputs, 1);
}

Tensor Mixer::step_each(const Tensor& x, std::span<State* const> states,
                        std::span<Context> contexts) {
  if (!same_step_anywhere()) {
    return by_sequence(states.size(), [&](size_t b) {
      return step(x.narrow(0, static_cast<int64_t>(b), 1), *states[b], contexts[b]);
    });
  }
  const torch::NoGradGuard no_grad;
  State all = stack(states);
  const Tensor y = step(x, all, contexts[0]);
  for (size_t b = 0; b < states.size(); ++b) {
    for (auto& [name, tensor] : states[b]->tensors) {
      make_own(tensor);
      tensor.copy_(all.tensors.at(name).narrow(0, static_cast<int64_t>(b), 1));
    }
    ++states[b]->position;
  }
  return y;
}

}  // namespace hopmix::nn

#include "hopmix/nn/mixer.h"

#include <vector>

#include "hopmix/nn/by_sequence.h"

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

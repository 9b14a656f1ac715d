#include "hopmix/nn/mixer.h"

#include <sstream>
#include <vector>

#include "hopmix/base/error.h"
#include "hopmix/nn/by_sequence.h"
#include "hopmix/nn/pattern_cache.h"
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

std::string describe(const Tensor& tensor, at::IntArrayRef sizes) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << ' ' << sizes;
  return text.str();
}

// Whether a tensor grows with the tokens: [B,0,...] before the first.
bool grows(const Tensor& initial) { return initial.dim() >= 2 && initial.size(1) == 0; }

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

// Without making it: it is asked whether a state fits the memory.
int64_t Mixer::state_bytes(int64_t) const {
  int64_t total = 0;
  for (const auto& [name, part] : kept_) {
    total += c10::multiply_integers(part.sizes) *
             static_cast<int64_t>(state_options(options(), part.type).dtype().itemsize());
  }
  return total;
}

Tensor Mixer::step(const Tensor& x, State& state, Context& context) {
  return prefill(x.unsqueeze(1), state, context).squeeze(1);
}

void Mixer::check_step(int64_t position) const {
  if (past()) past()->check_step(position);
}

void Mixer::check_state(const State& state) const {
  if (past()) past()->check_tokens(state);  // first: sizes at a wrong position may be costly
  const State initial = initial_state(1);
  for (const auto& [name, expected] : initial.tensors) {
    const auto found = state.tensors.find(name);
    if (found == state.tensors.end()) throw Error("tensor '" + name + "' is missing");
    const Tensor& tensor = found->second;
    std::vector<int64_t> sizes = expected.sizes().vec();
    if (grows(expected) && tensor.dim() > 1) sizes[1] = tensor.size(1);
    if (grows(expected) && past()) sizes[1] = past()->slots(state.position);
    if (tensor.scalar_type() == expected.scalar_type() && tensor.sizes() == sizes) continue;
    throw Error("tensor '" + name + "' is " + describe(tensor, tensor.sizes()) + ", but must be " +
                describe(expected, sizes));
  }
  for (const auto& [name, tensor] : state.tensors) {
    if (initial.tensors.contains(name) || (past() && past()->names_tokens(name))) continue;
    throw Error("tensor '" + name + "' does not belong to it");
  }
  if (state.bytes() != state_bytes(state.position)) {
    throw Error("its tensors hold " + std::to_string(state.bytes()) + " bytes, but must hold " +
                std::to_string(state_bytes(state.position)));
  }
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

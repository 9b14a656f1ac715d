#include "hopmix/nn/mixer.h"

#include <vector>

namespace hopmix::nn {

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

}  // namespace hopmix::nn

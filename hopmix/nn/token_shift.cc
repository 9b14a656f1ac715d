#include "hopmix/nn/token_shift.h"

#include <torch/csrc/autograd/custom_function.h>

namespace hopmix::nn {
namespace {

// concat(x_i, x_{i-1}) in one pass over the memory, and one in the backward. `starts`, if any, are
// further tokens, besides the first, that have no predecessor.
class Shift : public torch::autograd::Function<Shift> {
 public:
  using Context = torch::autograd::AutogradContext;

  static Tensor forward(Context* ctx, const Tensor& x, const std::optional<Tensor>& starts) {
    ctx->saved_data["starts"] = starts;
    const int64_t width = x.size(2);
    const Tensor out = torch::empty({x.size(0), x.size(1), 2 * width}, x.options());
    const auto [current, previous] = halves(out, width);
    current.copy_(x);
    previous.slice(1, 0, 1).zero_();
    previous.slice(1, 1).copy_(x.slice(1, 0, -1));
    if (starts) previous.index_fill_(1, *starts, 0);
    return out;
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    const auto starts = ctx->saved_data["starts"].toOptional<Tensor>();
    auto [current, previous] = halves(grads[0], grads[0].size(2) / 2);
    if (starts) previous = previous.index_fill(1, *starts, 0);
    const Tensor grad = current.clone(torch::MemoryFormat::Contiguous);
    grad.slice(1, 0, -1).add_(previous.slice(1, 1));
    return {grad, Tensor()};
  }

 private:
  static std::pair<Tensor, Tensor> halves(const Tensor& x, int64_t width) {
    return {x.narrow(2, 0, width), x.narrow(2, width, width)};
  }
};

}  // namespace

Tensor shift_tokens(const HeadsConfig& config, const Tensor& x, const Packing& packing) {
  if (!config.token_shift) return x;
  return Shift::apply(x, packing ? std::optional(packing.starts()) : std::nullopt);
}

Tensor shift_more_tokens(const HeadsConfig& config, const Tensor& x, State& state) {
  if (!config.token_shift) return x;
  const Tensor before = state.tensors.at("last").unsqueeze(1);
  const Tensor previous = torch::cat({before, x.slice(1, 0, -1)}, 1);
  state.tensors["last"] = x.select(1, -1).clone();  // clone: a view would keep all tokens alive
  return torch::cat({x, previous}, -1);
}

Tensor shift_tokens_step(const HeadsConfig& config, const Tensor& x, State& state) {
  if (!config.token_shift) return x.unsqueeze(1);
  const Tensor input = torch::cat({x, state.tensors.at("last")}, -1).unsqueeze(1);
  state.tensors["last"] = x.clone();  // clone: a view would keep the whole batch of tokens alive
  return input;
}

Tensor shift_tokens_each(const HeadsConfig& config, const Tensor& x,
                         std::span<State* const> states) {
  if (!config.token_shift) return x.unsqueeze(1);
  std::vector<Tensor> previous;
  for (size_t b = 0; b < states.size(); ++b) {
    Tensor& last = states[b]->tensors.at("last");
    previous.push_back(last);
    last = x.narrow(0, static_cast<int64_t>(b), 1).clone();
  }
  return torch::cat({x, torch::cat(previous)}, -1).unsqueeze(1);
}

StateParts token_shift_state(const HeadsConfig& config) {
  if (!config.token_shift) return {};
  return {{"last", {{config.width}}}};
}

}  // namespace hopmix::nn

#include "hopmix/nn/mixers/griffin.h"

#include <cmath>

#include "hopmix/nn/recurrent_state.h"
#include "hopmix/nn/state_space.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

constexpr double kDecayPower = 8;  // c of the paper

// sqrt(1 - a^2) is computed from log a, which is exact where a is nearly 1. 1 - a^2 is at least
// this value, because the slope of the root is unbounded at 0.
constexpr double kSmallestSquare = 1e-12;

Griffin::Griffin(const GriffinConfig& config) : config_(config) {
  const int64_t width = config.recurrent_width, heads = config.heads;
  if (heads < 1 || width < 1 || width % heads != 0) {
    throw Error("recurrent_width = " + std::to_string(width) + ": must be a multiple of heads, " +
                std::to_string(heads));
  }
  gate_ = register_module("gate", linear(config.width, width));
  value_ = register_module("value", linear(config.width, width));
  conv_ = register_module("conv", std::make_shared<ShortConvolution>(
                                      width, ShortConvolutionConfig{config.conv, true, false}));
  out_ = register_module("out", linear(width, config.width));
  const int64_t block = width / heads;
  check_weight({2, heads, block, block});
  gates_ = register_parameter(
      "gates", torch::randn({2, heads, block, block}) / std::sqrt(static_cast<double>(block)));
  gates_bias_ = register_parameter("gates_bias", torch::zeros(2 * width));
  const Tensor decays = torch::rand(width) * (0.999 - 0.9) + 0.9;
  lambda_ = register_parameter("lambda", inverse_softplus(-decays.log() / kDecayPower));
  keep(conv_->state());
  keep({{"h", {{width}, StateType::kSums}}});
}

std::pair<Tensor, Tensor> Griffin::gates(const Tensor& u) {
  const Tensor heads = split_heads(u, config_.heads);
  std::vector<Tensor> gates;
  for (const int64_t which : {0, 1}) {
    const Tensor map = gates_[which].to(u.scalar_type());
    const Tensor bias = gates_bias_.narrow(0, which * u.size(-1), u.size(-1));
    const Tensor logits = torch::einsum("bthd,hde->bthe", {heads, map}).flatten(2);
    gates.push_back(torch::sigmoid(as_state(logits) + as_state(bias)));
  }
  const Tensor log_a = -kDecayPower * torch::softplus(as_state(lambda_)) * gates[0];
  const Tensor share = (-torch::expm1(2 * log_a)).clamp_min(kSmallestSquare).sqrt();
  return {log_a.exp(), share * gates[1] * u};
}

Tensor Griffin::forward(const Tensor& x, Context& context) {
  const auto& cu_seqlens = context.packing.cu_seqlens();
  const Tensor u = conv_->forward(value_(x), cu_seqlens);
  const auto [a, added] = gates(u);
  const Tensor h = context.wanted(std::get<0>(ops::linear_recurrence(a, added, {}, cu_seqlens)));
  return out_(torch::gelu(gate_(context.wanted(x))) * h.to(u.scalar_type()));
}

Tensor Griffin::prefill(const Tensor& x, State& state, Context&) {
  const Tensor u = conv_->prefill(value_(x), state);
  const auto [a, added] = gates(u);
  Tensor h, &last = state.tensors["h"];
  std::tie(h, last) = ops::linear_recurrence(a, added, last);
  state.position += x.size(1);
  return out_(torch::gelu(gate_(x)) * h.to(u.scalar_type()));
}

MixerEntry griffin_entry() {
  return {"griffin",
          "h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t u_t)",
          "1",
          "1",
          "De et al. 2024",
          [](config::Table& table, const BlockDefaults& defaults) {
            GriffinConfig config;
            config.width = defaults.width;
            config.heads = table.get_between("heads", defaults.heads, 1, kMostSize);
            config.recurrent_width =
                table.get_between("recurrent_width", defaults.width, 1, kMostSize);
            config.conv = table.get_between("conv", config.conv, 1, kMostSize);
            return plan<Griffin>(config);
          }};
}

}  // namespace hopmix::nn

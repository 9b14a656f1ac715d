#include "hopmix/nn/mixers/mamba.h"

#include <cmath>

#include "hopmix/nn/heads.h"
#include "hopmix/nn/recurrent_state.h"
#include "hopmix/nn/state_space.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

Mamba::Mamba(const MambaConfig& config) : config_(config) {
  const int64_t inner = config.inner(), rank = config.step_rank();
  in_ = register_module("in", linear(config.width, 2 * inner));
  conv_ = register_module(
      "conv", std::make_shared<ShortConvolution>(inner, ShortConvolutionConfig{config.conv}));
  inputs_ = register_module("inputs", linear(inner, rank + 2 * config.state));
  step_ = register_module("step", linear(rank, inner, /*bias=*/true));
  out_ = register_module("out", linear(inner, config.width));
  check_weight({inner, config.state});
  const Tensor a = torch::arange(1, config.state + 1, torch::kFloat32);
  log_a_ = register_parameter("log_a", a.log().repeat({inner}));
  d_ = register_parameter("d", torch::ones(inner));
  keep(conv_->state());
  keep({{"h", {{inner, config.state}, StateType::kSums}}});
  const torch::NoGradGuard no_grad;
  const double bound = 1 / std::sqrt(static_cast<double>(rank));
  torch::nn::init::uniform_(step_->weight, -bound, bound);
  step_->bias.copy_(inverse_softplus(random_step_sizes(inner)));
}

std::tuple<Tensor, Tensor> Mamba::scan(const Tensor& u, const std::optional<Tensor>& state,
                                       const std::optional<Tensor>& cu_seqlens) {
  const std::vector<Tensor> maps =
      linear_parts(u, {inputs_->weight}, {config_.step_rank(), config_.state, config_.state});
  const Tensor delta = torch::softplus(step_(maps[0])).to(u.scalar_type());
  const Tensor a = -as_state(log_a_).exp().view({config_.inner(), config_.state});
  return ops::selective_scan(u, delta, a, maps[1], maps[2], as_state(d_), state, cu_seqlens);
}

Tensor Mamba::forward(const Tensor& x, Context& context) {
  const std::vector<Tensor> uz = linear_parts(x, {in_->weight}, {config_.inner(), config_.inner()});
  const auto& cu_seqlens = context.packing.cu_seqlens();
  const Tensor y = std::get<0>(scan(conv_->forward(uz[0], cu_seqlens), {}, cu_seqlens));
  return out_(context.wanted(y) * torch::silu(context.wanted(uz[1])));
}

Tensor Mamba::prefill(const Tensor& x, State& state, Context&) {
  const std::vector<Tensor> uz = linear_parts(x, {in_->weight}, {config_.inner(), config_.inner()});
  Tensor y, &h = state.tensors["h"];
  std::tie(y, h) = scan(conv_->prefill(uz[0], state), h);
  state.position += x.size(1);
  return out_(y * torch::silu(uz[1]));
}

MixerEntry mamba_entry() {
  return {"mamba",
          "h_t = exp(delta_t A) h_{t-1} + delta_t B_t u_t, y_t = C_t . h_t + D u_t",
          "S",
          "S",
          "Gu and Dao 2023",
          [](config::Table& table, const BlockDefaults& defaults) {
            MambaConfig config;
            config.width = defaults.width;
            config.expand = table.get_between("expand", config.expand, 1, kMostSize);
            config.state = table.get_between("state", config.state, 1, kMostSize);
            config.conv = table.get_between("conv", config.conv, 1, kMostSize);
            return plan<Mamba>(config);
          }};
}

}  // namespace hopmix::nn

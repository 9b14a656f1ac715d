#include "hopmix/nn/mixers/kda.h"

#include <cmath>

#include "hopmix/nn/heads.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

Kda::Kda(const KdaConfig& config) : config_(config) {
  const int64_t width = config.width, keys = config.keys(), values = config.values();
  qkv_ = register_module("qkv", linear(width, 2 * keys + values));
  conv_ = register_module(
      "conv", std::make_shared<ShortConvolution>(
                  2 * keys + values, ShortConvolutionConfig{.taps = config.conv, .bias = false}));
  beta_ = register_module("beta", linear(width, config.heads));
  decay_in_ = register_module("decay_in", linear(width, config.rank));
  decay_out_ = register_module("decay_out", linear(config.rank, keys));
  gate_in_ = register_module("gate_in", linear(width, config.rank));
  gate_out_ = register_module("gate_out", linear(config.rank, values, /*bias=*/true));
  norm_ = register_module("norm", std::make_shared<RmsNorm>(config.head_width * config.expand_v));
  out_ = register_module("out", linear(values, width));
  log_a_ = register_parameter("log_a", torch::empty(config.heads).uniform_(1, 16).log_());
  const Tensor dt = torch::empty(keys).uniform_(std::log(1e-3), std::log(0.1)).exp_();
  dt_bias_ = register_parameter("dt_bias", dt + torch::log(-torch::expm1(-dt)));  // softplus^-1
  keep(conv_->state());
  keep(matrix_state(config.heads, config.head_width, config.head_width * config.expand_v));
}

Tensor Kda::mix(const Tensor& x, const Tensor& qkv, Tensor* state,
                const std::optional<Tensor>& cu_seqlens) {
  const std::vector<Tensor> parts =
      qkv.split_with_sizes({config_.keys(), config_.keys(), config_.values()}, -1);
  const Tensor q = normalize_rows(split_heads(parts[0], config_.heads));
  const Tensor k = normalize_rows(split_heads(parts[1], config_.heads));
  const Tensor v = split_heads(parts[2], config_.heads);
  const Tensor beta = torch::sigmoid(beta_(x)).to(q.scalar_type());
  const Tensor steps = torch::softplus(decay_out_(decay_in_(x)) + dt_bias_);
  const Tensor g =
      (-log_a_.exp().unsqueeze(-1) * split_heads(steps, config_.heads)).to(q.scalar_type());
  return advance_matrix(state, q, k, v, {g, beta}, [&](const std::optional<Tensor>& before) {
    return ops::kda(q, k, v, g, beta, {}, before, cu_seqlens);
  });
}

Tensor Kda::read_out(const Tensor& o, const Tensor& x) {
  const Tensor gate = torch::sigmoid(gate_out_(gate_in_(x)));
  return out_((norm_->forward(o).flatten(-2) * gate).to(gate.scalar_type()));
}

Tensor Kda::forward(const Tensor& x, Context& context) {
  const auto& cu_seqlens = context.packing.cu_seqlens();
  const Tensor o = mix(x, conv_->forward(qkv_(x), cu_seqlens), nullptr, cu_seqlens);
  return read_out(context.wanted(o), context.wanted(x));
}

Tensor Kda::prefill(const Tensor& x, State& state, Context&) {
  const Tensor o = mix(x, conv_->prefill(qkv_(x), state), &state.tensors.at("S"));
  state.position += x.size(1);
  return read_out(o, x);
}

MixerEntry kda_entry() {
  return {"kda",
          "S_t = (I - beta_t k_t k_t^T) diag(e^g_t) S_{t-1} + beta_t k_t v_t^T",
          "1",
          "D",
          "Kimi team 2025 (Kimi Delta Attention)",
          [](config::Table& table, const BlockDefaults& defaults) {
            KdaConfig config{.width = defaults.width};
            config.heads = table.get_between("heads", defaults.heads, 1, kMostSize);
            config.head_width = table.get_between(
                "head_width", std::max<int64_t>(defaults.width / config.heads, 1), 1, kMostSize);
            config.expand_v = table.get_between("expand_v", config.expand_v, 1, kMostSize);
            config.rank = table.get_between("rank", config.head_width, 1, kMostSize);
            config.conv = table.get_between("conv", config.conv, 1, kMostSize);
            return plan<Kda>(config);
          }};
}

}  // namespace hopmix::nn

#include "hopmix/nn/mixers/deltanet.h"

#include <cmath>

#include "hopmix/nn/heads.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

DeltaNet::DeltaNet(const DeltaNetConfig& config) : config_(config) {
  const int64_t width = config.width, heads = config.heads;
  qkv_ = register_module("qkv", linear(width, 2 * config.keys() + config.values()));
  conv_ = register_module("conv", std::make_shared<ShortConvolution>(
                                      2 * config.keys() + config.values(),
                                      ShortConvolutionConfig{.taps = config.conv, .bias = false}));
  beta_ = register_module("beta", linear(width, heads));
  norm_ =
      register_module("norm", std::make_shared<GatedHeadNorm>(config.head_width * config.expand_v));
  out_ = register_module("out", linear(config.values(), width));
  keep(conv_->state());
  keep(matrix_state(heads, config.head_width, config.head_width * config.expand_v));
  if (!config.gated) return;
  decay_ = register_module("decay", linear(width, heads));
  gate_ = register_module("gate", linear(width, config.values()));
  log_a_ = register_parameter("log_a", torch::empty(heads).uniform_(1, 16).log_());
  const Tensor dt = torch::empty(heads).uniform_(std::log(1e-3), std::log(0.1)).exp_();
  dt_bias_ = register_parameter("dt_bias", dt + torch::log(-torch::expm1(-dt)));  // softplus^-1
}

Tensor DeltaNet::recur(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& g, const Tensor& beta, State* state,
                       const std::optional<Tensor>& cu_seqlens) {
  return advance_matrix(
      state ? &state->tensors.at("S") : nullptr, q, k, v, {g, beta},
      [&](const std::optional<Tensor>& before) {
        return g.defined() ? ops::gated_delta_rule(q, k, v, g, beta, {}, before, cu_seqlens)
                           : ops::delta_rule(q, k, v, beta, {}, before, cu_seqlens);
      });
}

Tensor DeltaNet::mix(const Tensor& x, const Tensor& qkv, State* state,
                     const std::optional<Tensor>& cu_seqlens) {
  const std::vector<Tensor> parts =
      qkv.split_with_sizes({config_.keys(), config_.keys(), config_.values()}, -1);
  const Tensor q = normalize_rows(split_heads(parts[0], config_.heads));
  const Tensor k = normalize_rows(split_heads(parts[1], config_.heads));
  const Tensor v = split_heads(parts[2], config_.heads);
  Tensor beta = torch::sigmoid(beta_(x)).to(q.scalar_type());
  if (config_.negative_eigenvalues) beta = 2 * beta;
  if (!config_.gated) return recur(x, q, k, v, Tensor(), beta, state, cu_seqlens);
  const Tensor g = -log_a_.exp() * torch::softplus(decay_(x) + dt_bias_);
  return recur(x, q, k, v, g.to(q.scalar_type()), beta, state, cu_seqlens);
}

Tensor DeltaNet::read_out(const Tensor& o, const Tensor& x) {
  if (config_.gated) return out_(norm_->forward(o, gate_(x)));
  return out_(norm_->RmsNorm::forward(o).flatten(-2).to(o.scalar_type()));
}

Tensor DeltaNet::forward(const Tensor& x, Context& context) {
  const auto& cu_seqlens = context.packing.cu_seqlens();
  const Tensor o = mix(x, conv_->forward(qkv_(x), cu_seqlens), nullptr, cu_seqlens);
  return read_out(context.wanted(o), context.wanted(x));
}

Tensor DeltaNet::prefill(const Tensor& x, State& state, Context&) {
  const Tensor o = mix(x, conv_->prefill(qkv_(x), state), &state);
  state.position += x.size(1);
  return read_out(o, x);
}

DeltaNetConfig read_deltanet(config::Table& table, const BlockDefaults& defaults, bool gated) {
  DeltaNetConfig config;
  config.gated = gated;
  config.width = defaults.width;
  config.heads = table.get_between("heads", defaults.heads, 1, kMostSize);
  config.head_width = table.get_between(
      "head_width", std::max<int64_t>(defaults.width / config.heads, 1), 1, kMostSize);
  config.expand_v = table.get_between("expand_v", gated ? 2 : 1, 1, kMostSize);
  config.conv = table.get_between("conv", config.conv, 1, kMostSize);
  config.negative_eigenvalues = table.get("negative_eigenvalues", config.negative_eigenvalues);
  return config;
}

namespace {

MixerEntry entry(bool gated) {
  const auto make = [gated](config::Table& table, const BlockDefaults& defaults) {
    return plan<DeltaNet>(read_deltanet(table, defaults, gated));
  };
  const std::string plain = "S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T";
  if (!gated) return {"deltanet", plain, "1", "D", "Yang et al. 2024 (DeltaNet)", make};
  return {"gated_deltanet",
          "S_t = e^g_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T",
          "1",
          "D",
          "Yang et al. 2024 (Gated DeltaNet)",
          make};
}

}  // namespace

MixerEntry deltanet_entry() { return entry(/*gated=*/false); }
MixerEntry gated_deltanet_entry() { return entry(/*gated=*/true); }

}  // namespace hopmix::nn

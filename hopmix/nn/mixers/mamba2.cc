#include "hopmix/nn/mixers/mamba2.h"

#include <algorithm>
#include <cmath>

#include "hopmix/ops/ops.h"

namespace hopmix::nn {

Mamba2::Mamba2(const Mamba2Config& config) : config_(config) {
  const int64_t inner = config.inner();
  int64_t& head_width = config_.head_width;
  if (head_width == 0) {
    head_width = std::max<int64_t>(1, std::min<int64_t>(64, inner / 4));
    while (inner % head_width != 0) --head_width;
  }
  if (head_width < 1 || inner % head_width != 0) {
    throw Error("head_width = " + std::to_string(head_width) +
                ": must divide the inner width, expand * width = " + std::to_string(inner));
  }
  const std::vector<int64_t> parts = widths();
  in_ = register_module("in", linear(config.width, parts[0] + parts[1] + parts[2]));
  convolution_ = register_module("convolution",
                                 std::make_shared<ShortConvolution>(
                                     parts[1], ShortConvolutionConfig{.taps = config.convolution}));
  norm_ = register_module("norm", std::make_shared<RmsNorm>(inner));
  out_ = register_module("out", linear(inner, config.width));
  const Tensor dt = torch::exp(torch::empty({heads()}).uniform_(std::log(1e-3), std::log(1e-1)));
  // softplus(dt_bias) = dt.
  dt_bias_ = register_parameter("dt_bias", dt + torch::log(-torch::expm1(-dt)));
  log_a_ = register_parameter("log_a", torch::log(torch::empty({heads()}).uniform_(1, 16)));
  d_ = register_parameter("d", torch::ones({heads()}));
  keep(convolution_->state());
  keep(matrix_state(heads(), config.state, head_width));
}

std::vector<int64_t> Mamba2::widths() const {
  return {config_.inner(), config_.inner() + 2 * config_.state, heads()};
}

Tensor Mamba2::recur(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& g, State* state, const std::optional<Tensor>& cu_seqlens) {
  const MatrixGates gates{.log_decay = g, .scale = 1.0};
  return advance_matrix(state ? &state->tensors.at("S") : nullptr, q, k, v, gates,
                        [&](const std::optional<Tensor>& before) {
                          return ops::ssd(q, k, v, g, gates.scale, before, cu_seqlens);
                        });
}

Tensor Mamba2::mix(const Tensor& u, const Tensor& z, const Tensor& xbc, const Tensor& dt,
                   State* state, const std::optional<Tensor>& cu_seqlens) {
  const std::vector<Tensor> parts =
      xbc.split_with_sizes({config_.inner(), config_.state, config_.state}, -1);
  const auto type = xbc.scalar_type();
  const Tensor x = split_heads(parts[0], heads());
  const auto for_all_heads = [&](const Tensor& one) {
    return one.unsqueeze(2).expand({-1, -1, heads(), -1});
  };
  const Tensor step = torch::softplus(dt + dt_bias_);  // [B,T,heads]
  const Tensor o =
      recur(u, for_all_heads(parts[2]), for_all_heads(parts[1]), (step.unsqueeze(-1) * x).to(type),
            (-torch::exp(log_a_) * step).to(type), state, cu_seqlens);
  const Tensor y = (o + d_.unsqueeze(-1) * x).flatten(2);
  return norm_->forward(y * torch::silu(z)).to(type);
}

Tensor Mamba2::forward(const Tensor& x, Context& context) {
  const std::vector<Tensor> parts = linear_parts(x, {in_->weight}, widths());
  const auto& cu_seqlens = context.packing.cu_seqlens();
  const Tensor xbc = convolution_->forward(parts[1], cu_seqlens);
  return out_(context.wanted(mix(x, parts[0], xbc, parts[2], nullptr, cu_seqlens)));
}

Tensor Mamba2::prefill(const Tensor& x, State& state, Context&) {
  const std::vector<Tensor> parts = in_(x).split_with_sizes(widths(), -1);
  const Tensor y = mix(x, parts[0], convolution_->prefill(parts[1], state), parts[2], &state);
  state.position += x.size(1);
  return out_(y);
}

Mamba2Config read_mamba2(config::Table& table, const BlockDefaults& defaults) {
  Mamba2Config config{.width = defaults.width};
  config.expand = table.get_between("expand", config.expand, 1, kMostSize);
  config.head_width = table.get_between("head_width", config.head_width, 0, kMostSize);
  config.state = table.get_between("state", config.state, 1, kMostSize);
  config.convolution = table.get_between("conv", config.convolution, 1, kMostSize);
  return config;
}

MixerEntry mamba2_entry() {
  return {"mamba2",
          "S_t = e^{dt_t A} S_{t-1} + B_t (dt_t x_t)^T, y_t = C_t S_t + D x_t",
          "1",
          "expand state / T",
          "Dao and Gu 2024 (arXiv 2405.21060)",
          [](config::Table& table, const BlockDefaults& defaults) {
            return plan<Mamba2>(read_mamba2(table, defaults));
          }};
}

}  // namespace hopmix::nn

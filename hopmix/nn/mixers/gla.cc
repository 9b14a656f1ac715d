#include "hopmix/nn/mixers/gla.h"

#include "hopmix/nn/heads.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {
namespace {

void check_width(const char* name, double expand, int64_t width, const GlaConfig& config) {
  if (width < 1 || width % config.heads != 0) {
    throw Error(std::string(name) + " = " + std::to_string(expand) + ": makes a width of " +
                std::to_string(width) + ", which must be a positive multiple of heads, " +
                std::to_string(config.heads));
  }
}

}  // namespace

Gla::Gla(const GlaConfig& config) : config_(config) {
  check_width("expand_k", config.expand_k, config.keys(), config);
  check_width("expand_v", config.expand_v, config.values(), config);
  if (!(config.gate_divisor > 0)) {
    throw Error("gate_divisor = " + std::to_string(config.gate_divisor) + ": must be above 0");
  }
  const int64_t keys = config.keys(), values = config.values();
  qkv_ = register_module("qkv", linear(config.width, 2 * keys + values));
  gate_ = register_module("gate", linear(config.width, values));
  decay_in_ = register_module("decay_in", linear(config.width, config.gate_rank));
  decay_out_ = register_module("decay_out", linear(config.gate_rank, keys, /*bias=*/true));
  if (config.convolution > 0) {
    convolution_ = register_module(
        "convolution",
        std::make_shared<ShortConvolution>(
            2 * keys + values, ShortConvolutionConfig{.taps = config.convolution, .bias = false}));
  }
  norm_ = register_module("norm", std::make_shared<GatedHeadNorm>(values / config.heads));
  out_ = register_module("out", linear(values, config.width));
  if (convolution_) keep(convolution_->state());
  keep(matrix_state(config.heads, keys / config.heads, values / config.heads));
}

Tensor Gla::mix(const Tensor& x, const Tensor& qkv, Tensor* state,
                const std::optional<Tensor>& cu_seqlens) {
  std::vector<Tensor> parts =
      qkv.split_with_sizes({config_.keys(), config_.keys(), config_.values()}, -1);
  for (Tensor& part : parts) part = split_heads(part, config_.heads);
  const Tensor log_decay =
      (torch::log_sigmoid(decay_out_(decay_in_(x))) / config_.gate_divisor).to(qkv.scalar_type());
  const Tensor of_heads = split_heads(log_decay, config_.heads);
  const Tensor o = advance_matrix(
      state, parts[0], parts[1], parts[2], {of_heads}, [&](const std::optional<Tensor>& before) {
        return ops::gla(parts[0], parts[1], parts[2], of_heads, {}, before, cu_seqlens);
      });
  return norm_->forward(o, gate_(x));
}

Tensor Gla::forward(const Tensor& x, Context& context) {
  const auto& cu_seqlens = context.packing.cu_seqlens();
  const Tensor qkv = qkv_(x);
  const Tensor read = convolution_ ? convolution_->forward(qkv, cu_seqlens) : qkv;
  return out_(context.wanted(mix(x, read, nullptr, cu_seqlens)));
}

Tensor Gla::prefill(const Tensor& x, State& state, Context&) {
  const Tensor qkv = qkv_(x);
  const Tensor read = convolution_ ? convolution_->prefill(qkv, state) : qkv;
  state.position += x.size(1);
  return out_(mix(x, read, &state.tensors["S"]));
}

MixerEntry gla_entry() {
  return {"gla",
          "S_t = diag(e^{g_t}) S_{t-1} + k_t v_t^T, o_t = q_t S_t",
          "1",
          "head width / T",
          "Yang et al. 2023 (arXiv 2312.06635)",
          [](config::Table& table, const BlockDefaults& defaults) {
            GlaConfig config{.width = defaults.width};
            config.heads = table.get_between("heads", defaults.heads, 1, kMostSize);
            config.expand_k = table.get("expand_k", config.expand_k);
            config.expand_v = table.get("expand_v", config.expand_v);
            for (const char* key : {"expand_k", "expand_v"}) {
              const double expand = table.get(key, 0.0);
              if (!(expand > 0 && expand <= kMostSize)) {
                throw table.bad(key, "must be above 0 and at most " + std::to_string(kMostSize));
              }
            }
            config.gate_rank = table.get_between("gate_rank", config.gate_rank, 1, kMostSize);
            config.gate_divisor = table.get("gate_divisor", config.gate_divisor);
            config.convolution = table.get_between("conv", config.convolution, 0, kMostSize);
            return plan<Gla>(config);
          }};
}

}  // namespace hopmix::nn

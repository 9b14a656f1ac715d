#include "hopmix/nn/mixers/chacal.h"

#include "hopmix/nn/token_attention.h"
#include "hopmix/nn/token_shift.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

double read_gamma(config::Table& table, double fallback) {
  const double gamma = table.get("gamma", fallback);
  if (!(gamma >= 0 && gamma < 1)) {
    throw Error("gamma = " + std::to_string(gamma) + ": must be at least 0 and below 1");
  }
  return gamma;
}

std::pair<Tensor, Tensor> chacal_step(const Tensor& weights, const Tensor& past, const Tensor& v,
                                      double gamma) {
  const int64_t c = past.size(1);
  const Tensor earlier = token_sum(weights.narrow(2, 0, c), past), own = weights.narrow(2, c, 1);
  const Tensor w = (v + gamma * earlier) / (1 - gamma * own);
  return {w, earlier + own * w};
}

Chacal::Chacal(const ChacalConfig& config)
    : CachedMixer(config, {Pattern("dense", 1), head_entries(config, {"k", "w"})}),
      gamma_(config.gamma) {
  qkv_ = register_module("qkv", linear(config.input_width(), 3 * config.width));
  out_ = register_module("out", linear(config.width, config.width));
}

Tensor Chacal::forward(const Tensor& x, Context& context) {
  const Packing& packing = context.packing;
  const std::vector<Tensor> qkv = project(shift_tokens(heads_, x, packing), packing);
  return read_out(
      context.wanted(ops::chacal(qkv[0], qkv[1], qkv[2], gamma_, {}, packing.cu_seqlens())));
}

Tensor Chacal::attend(const std::vector<Tensor>& qkv, State& state, Context&) {
  const Tensor weights = token_softmax(qkv[0].squeeze(1), cache_.read(state, "k"), qkv[1]);
  const auto [w, mix] = chacal_step(weights, cache_.read(state, "w"), qkv[2].squeeze(1), gamma_);
  cache_.append(state, {qkv[1], w.unsqueeze(1)});
  return (1 - gamma_) * mix;
}

Tensor Chacal::prefill(const Tensor& x, State& state, Context& context) {
  // The operator requires an empty past.
  if (state.position > 0) return Mixer::prefill(x, state, context);
  const std::vector<Tensor> qkv = project(shift_more_tokens(heads_, x, state), 0);
  const Tensor y = ops::chacal(qkv[0], qkv[1], qkv[2], gamma_);
  // W = V + gamma A W, and Y = (1 - gamma) A W.
  cache_.extend(state, {qkv[1], qkv[2] + gamma_ / (1 - gamma_) * y});
  state.position += x.size(1);
  return read_out(y);
}

MixerEntry chacal_entry() {
  return {"chacal",
          "Y = (1-g) A (I - g A)^{-1} V, A softmax attention",
          "n",
          "2n",
          "Fagnou et al. 2024 (arXiv 2410.05565)",
          [](config::Table& table, const BlockDefaults& defaults) {
            ChacalConfig config{read_heads(table, defaults)};
            config.gamma = read_gamma(table, config.gamma);
            return plan<Chacal>(config);
          }};
}

}  // namespace hopmix::nn

#include "hopmix/nn/mixers/chacal.h"

#include "hopmix/nn/by_sequence.h"
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

Chacal::Chacal(const ChacalConfig& config) : config_(config), past_("dense") {
  check_heads(config);
  qkv_ = register_module("qkv", linear(config.input_width(), 3 * config.width));
  out_ = register_module("out", linear(config.width, config.width));
}

Tensor Chacal::forward(const Tensor& x, Context& context) {
  const Packing& packing = context.packing;
  const std::vector<Tensor> qkv =
      project_qkv(qkv_, config_, shift_tokens(config_, x, packing), packing);
  const Tensor y = ops::chacal(qkv[0], qkv[1], qkv[2], config_.gamma, {}, packing.cu_seqlens());
  return out_(context.wanted(y.flatten(2)));
}

State Chacal::initial_state(int64_t batch) const {
  State state;
  init_token_shift(config_, batch, options(), state);
  for (const char* name : {"k", "w"}) {
    state.tensors[name] = torch::empty({batch, 0, config_.heads, config_.head_width()}, options());
  }
  return state;
}

Tensor Chacal::mix(const std::vector<Tensor>& qkv, State& state) {
  const Tensor weights = token_softmax(qkv[0].squeeze(1), past_.read(state, "k"), qkv[1]);
  const auto [w, mixed] =
      chacal_step(weights, past_.read(state, "w"), qkv[2].squeeze(1), config_.gamma);
  past_.append(state, {{"k", qkv[1].squeeze(1)}, {"w", w}});
  ++state.position;
  return ((1 - config_.gamma) * mixed).flatten(1);
}

Tensor Chacal::step(const Tensor& x, State& state, Context&) {
  const Tensor input = shift_tokens_step(config_, x, state);
  return out_(mix(project_qkv(qkv_, config_, input, state.position), state));
}

Tensor Chacal::step_each(const Tensor& x, std::span<State* const> states, std::span<Context>) {
  const Tensor input = shift_tokens_each(config_, x, states);
  const std::vector<Tensor> qkv = project_qkv(qkv_, config_, input, Starts(states));
  return out_(
      by_sequence(states.size(), [&](size_t b) { return mix(row_of(qkv, b), *states[b]); }));
}

Tensor Chacal::prefill(const Tensor& x, State& state, Context& context) {
  // The operator requires an empty past.
  if (state.position > 0) return Mixer::prefill(x, state, context);
  const std::vector<Tensor> qkv =
      project_qkv(qkv_, config_, shift_more_tokens(config_, x, state), 0);
  const Tensor y = ops::chacal(qkv[0], qkv[1], qkv[2], config_.gamma);
  // W = V + gamma A W, and Y = (1 - gamma) A W.
  const Tensor w = qkv[2] + config_.gamma / (1 - config_.gamma) * y;
  past_.extend(state, {{"k", qkv[1]}, {"w", w}});
  state.position += x.size(1);
  return out_(y.flatten(2));
}

int64_t Chacal::state_bytes(int64_t t) const {
  return past_.bytes(t, 2 * config_.width * element_size()) +
         token_shift_elements(config_) * element_size();
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
            return std::make_shared<Chacal>(config);
          }};
}

}  // namespace hopmix::nn

#include "hopmix/nn/mixers/log_linear.h"

#include <cmath>

#include "hopmix/nn/recurrent_state.h"
#include "hopmix/ops/fenwick.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {
namespace {

/// The single token of [B,1,H,...], shaped like states.
Tensor token(const Tensor& x) { return as_state(x.select(1, 0)); }

/// The buckets [B,buckets,H,K,V] decayed by e^g, g [B,1,H].
Tensor decayed(const State& state, const Tensor& g) {
  return token(g).exp().unsqueeze(1).unsqueeze(-1).unsqueeze(-1) * state.tensors.at("S");
}

constexpr int64_t kMostLevels = 63;  // of 64-bit positions

int64_t read_levels(config::Table& table, const BlockDefaults& defaults) {
  return table.get_between("levels", ops::fenwick_levels(defaults.length), 1, kMostLevels);
}

}  // namespace

LogLinearMamba2::LogLinearMamba2(const Mamba2Config& config, int64_t levels) : Mamba2(config) {
  factors_ =
      register_module("factors", std::make_shared<LevelFactors>(config.width, heads(), levels));
  keep(fenwick_state(heads(), config.state, config.inner() / heads()));
}

// Updates the buckets token by token.
Tensor LogLinearMamba2::prefill(const Tensor& x, State& state, Context& context) {
  return Mixer::prefill(x, state, context);
}

Tensor LogLinearMamba2::step(const Tensor& x, State& state, Context& context) {
  return Mamba2::prefill(x.unsqueeze(1), state, context).squeeze(1);
}

int64_t LogLinearMamba2::state_bytes(int64_t t) const {
  return Mixer::state_bytes(t) + fenwick_bytes(initial_state(1), t);
}

Tensor LogLinearMamba2::recur(const Tensor& u, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& g, State* state,
                              const std::optional<Tensor>& cu_seqlens) {
  const Tensor factors = factors_->forward(u).to(q.scalar_type());
  if (state == nullptr) {
    return ops::log_linear_attention(q, k, v, g, factors, /*scale=*/1.0, cu_seqlens);
  }
  const Tensor written = token(k).unsqueeze(-1) * token(v).unsqueeze(-2);
  const Tensor o = fenwick_step(decayed(*state, g), written, token(q), token(factors), *state);
  return o.unsqueeze(1).to(q.scalar_type());
}

LogLinearGatedDeltaNet::LogLinearGatedDeltaNet(const DeltaNetConfig& config, int64_t levels)
    : DeltaNet(config) {
  factors_ = register_module("factors",
                             std::make_shared<LevelFactors>(config.width, config.heads, levels));
  keep(fenwick_state(config.heads, config.head_width, config.head_width * config.expand_v));
}

Tensor LogLinearGatedDeltaNet::prefill(const Tensor& x, State& state, Context& context) {
  return Mixer::prefill(x, state, context);
}

Tensor LogLinearGatedDeltaNet::step(const Tensor& x, State& state, Context& context) {
  return DeltaNet::prefill(x.unsqueeze(1), state, context).squeeze(1);
}

int64_t LogLinearGatedDeltaNet::state_bytes(int64_t t) const {
  return Mixer::state_bytes(t) + fenwick_bytes(initial_state(1), t);
}

Tensor LogLinearGatedDeltaNet::recur(const Tensor& x, const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& g, const Tensor& beta,
                                     State* state, const std::optional<Tensor>& cu_seqlens) {
  const Tensor factors = factors_->forward(x).to(q.scalar_type());
  if (state == nullptr) {
    return ops::log_linear_delta_rule(q, k, v, g, beta, factors, {}, cu_seqlens);
  }
  const Tensor key = token(k), write = key * token(beta).unsqueeze(-1);
  const Tensor past = decayed(*state, g);
  const Tensor known = torch::matmul(key.unsqueeze(1).unsqueeze(3), past);  // [B,n,H,1,V]
  const Tensor carried = past - write.unsqueeze(1).unsqueeze(-1) * known;
  const Tensor written = write.unsqueeze(-1) * token(v).unsqueeze(-2);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor o = fenwick_step(carried, written, token(q) * scale, token(factors), *state);
  return o.unsqueeze(1).to(q.scalar_type());
}

MixerEntry log_linear_mamba2_entry() {
  return {"log_linear_mamba2",
          "mamba2 with a state S_t^l for each bucket of the past, y_t = sum_l lambda_t^l C_t S_t^l",
          "log2(T)",
          "expand state log2(T) / T",
          "Guo et al. 2025 (arXiv 2506.04761)",
          [](config::Table& table, const BlockDefaults& defaults) {
            const Mamba2Config config = read_mamba2(table, defaults);
            return plan<LogLinearMamba2>(config, read_levels(table, defaults));
          }};
}

MixerEntry log_linear_gated_deltanet_entry() {
  return {"log_linear_gated_deltanet",
          "gated_deltanet with a state for each bucket of the past",
          "log2(T)",
          "D log2(T)",
          "Guo et al. 2025 (arXiv 2506.04761)",
          [](config::Table& table, const BlockDefaults& defaults) {
            const DeltaNetConfig config = read_deltanet(table, defaults, /*gated=*/true);
            return plan<LogLinearGatedDeltaNet>(config, read_levels(table, defaults));
          }};
}

}  // namespace hopmix::nn

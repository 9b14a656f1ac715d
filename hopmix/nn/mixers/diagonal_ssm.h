// A diagonal state-space model that does not depend on its input: S4D-Real (Gu et al. 2022, arXiv
// 2206.11893).
#pragma once

#include "hopmix/nn/heads.h"

namespace hopmix::nn {

struct DiagonalSsmConfig {
  int64_t width = 64;       // model width
  int64_t state = 16;       // S, numbers per channel
  bool token_shift = true;  // the value map sees concat(x_i, x_{i-1})
};

/// For channel e of u = W_v x, with A_s = -(1 .. S) and a step dt_e, by zero-order hold,
///   h_t[s] = exp(dt A_s) h_{t-1}[s] + (exp(dt A_s) - 1) / A_s u_t,  y_t = C_e . h_t + D_e u_t,
/// and out = W_out GELU(y). dt is initialized log-uniform in [0.001, 0.1], C normal, D to 1. A pass
/// consists of matrix products on pieces of 64 tokens and a linear recurrence across them.
class DiagonalSsm : public Mixer {
 public:
  explicit DiagonalSsm(const DiagonalSsmConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  bool same_step_anywhere() const override { return true; }

 private:
  /// dt A_s, and the weight of h_s under C when u itself is added to it: each [E,S].
  std::pair<Tensor, Tensor> rates() const;

  /// u [B,T,E] -> C . h of every token.
  Tensor convolve(const Tensor& u, const Packing& packing = {}) const;

  HeadsConfig shift() const { return {config_.width, 1, config_.token_shift}; }

  DiagonalSsmConfig config_;
  Linear value_{nullptr}, out_{nullptr};
  Tensor log_dt_, d_;  // [E]
  Tensor c_;           // [E,S]
};

MixerEntry diagonal_ssm_entry();

}  // namespace hopmix::nn

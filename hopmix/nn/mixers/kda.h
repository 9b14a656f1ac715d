// Kimi Delta Attention: the delta rule with a decay per key channel.
#pragma once

#include "hopmix/nn/linear.h"
#include "hopmix/nn/matrix_state.h"
#include "hopmix/nn/norm.h"
#include "hopmix/nn/registry.h"
#include "hopmix/nn/short_convolution.h"

namespace hopmix::nn {

struct KdaConfig {
  int64_t width = 64;  // model width
  int64_t heads = 4;
  int64_t head_width = 16;  // of q and k
  int64_t expand_v = 1;     // value width over key width
  int64_t rank = 16;        // rank of the maps to the log decays and the output gate
  int64_t conv = 4;         // tokens that the short convolution reads

  int64_t keys() const { return heads * head_width; }
  int64_t values() const { return keys() * expand_v; }
};

/// Kimi Linear (Kimi team 2025, arXiv 2510.26692): q, k and v are linear maps followed by a short
/// convolution and SiLU; q and k have norm 1 per head. With beta_t = sigmoid(linear) per head and
/// g_t = -e^A softplus(W2 W1 x + dt) per key channel, A per head,
///
///   S' = diag(e^{g_t}) S_{t-1},  S_t = S' + beta_t k_t (v_t - S'^T k_t)^T,
///   o_t = S_t^T q_t / sqrt(D),
///
/// then RMSNorm per head times sigmoid(W4 W3 x), and the output map. e^A is initialized uniform in
/// [1, 16], softplus(dt) log-uniform in [1e-3, 0.1]. The convolution takes the place of the token
/// shift.
class Kda : public Mixer {
 public:
  explicit Kda(const KdaConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  bool same_step_anywhere() const override { return true; }

 private:
  /// From x [B,T,width] and qkv [B,T,2 keys + values] after the convolution -> heads [B,T,H,DV];
  /// advances `state`, if there is one.
  Tensor mix(const Tensor& x, const Tensor& qkv, Tensor* state,
             const std::optional<Tensor>& cu_seqlens = {});

  /// From heads o [...,H,DV] and the input x [...,width] of their tokens.
  Tensor read_out(const Tensor& o, const Tensor& x);

  KdaConfig config_;
  Linear qkv_{nullptr}, beta_{nullptr}, decay_in_{nullptr}, decay_out_{nullptr};
  Linear gate_in_{nullptr}, gate_out_{nullptr}, out_{nullptr};
  Tensor log_a_, dt_bias_;  // [H], [keys]
  std::shared_ptr<ShortConvolution> conv_;
  std::shared_ptr<RmsNorm> norm_;
};

MixerEntry kda_entry();

}  // namespace hopmix::nn

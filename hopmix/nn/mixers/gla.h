// Gated linear attention (Yang et al. 2023, arXiv 2312.06635).
#pragma once

#include "hopmix/nn/linear.h"
#include "hopmix/nn/matrix_state.h"
#include "hopmix/nn/norm.h"
#include "hopmix/nn/registry.h"
#include "hopmix/nn/short_convolution.h"

namespace hopmix::nn {

struct GlaConfig {
  int64_t width = 64, heads = 4;
  double expand_k = 0.5, expand_v = 1.0;  // widths of q, k and of v, relative to the model's
  int64_t gate_rank = 16;                 // rank of the map to the log decays
  double gate_divisor = 16;               // log decay = log sigmoid(.) / gate_divisor
  int64_t convolution = 4;                // taps before q, k, v; 0: none, as in the paper

  int64_t keys() const { return static_cast<int64_t>(expand_k * static_cast<double>(width)); }
  int64_t values() const { return static_cast<int64_t>(expand_v * static_cast<double>(width)); }
};

/// S_t = diag(e^{g_t}) S_{t-1} + k_t v_t^T, o_t = q_t S_t / sqrt(DK); g_t = log sigmoid(W2 W1 x +
/// b) / 16 with W1 of rank gate_rank; then RMSNorm per head times SiLU of a map of x (section 4.4).
/// q, k and v pass through a short convolution with SiLU, an option of flash-linear-attention,
/// which takes the place of the token shift.
class Gla : public Mixer {
 public:
  explicit Gla(const GlaConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  bool same_step_anywhere() const override { return true; }

 private:
  /// x and qkv [B,T,*], the latter convolved -> [B,T,values]; advances `state`, if there is one.
  Tensor mix(const Tensor& x, const Tensor& qkv, Tensor* state,
             const std::optional<Tensor>& cu_seqlens = {});

  GlaConfig config_;
  Linear qkv_{nullptr}, gate_{nullptr}, decay_in_{nullptr}, decay_out_{nullptr};
  Linear out_{nullptr};
  std::shared_ptr<ShortConvolution> convolution_;  // null if taps = 0
  std::shared_ptr<GatedHeadNorm> norm_;
};

MixerEntry gla_entry();

}  // namespace hopmix::nn

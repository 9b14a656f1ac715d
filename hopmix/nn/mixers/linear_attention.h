// Linear attention: a feature map instead of the softmax's exponential.
#pragma once

#include "hopmix/nn/heads.h"
#include "hopmix/nn/matrix_state.h"
#include "hopmix/nn/norm.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

struct LinearAttentionConfig : HeadsConfig {
  std::string feature_map = "elu";  // for q and k: elu (elu(x) + 1), relu, softmax, identity
  bool normalizer = false;
};

/// o_i = phi(q_i) sum_{j <= i} phi(k_j)^T v_j, then RMSNorm per head, as in flash-linear-attention;
/// Qin et al. 2022 (arXiv 2210.10340) found the quotient to be what destabilizes training. With
/// `normalizer`, divides by sum_{j <= i} phi(q_i) . phi(k_j) instead, as in the first paper.
class LinearAttention : public Mixer {
 public:
  explicit LinearAttention(const LinearAttentionConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  bool same_step_anywhere() const override { return true; }

 private:
  Tensor features(const Tensor& x) const;
  /// input [B,T,*] -> [B,T,width]; advances `state` [B,H,D,*], if there is one.
  Tensor mix(const Tensor& input, Tensor* state, const std::optional<Tensor>& cu_seqlens = {});

  LinearAttentionConfig config_;
  Linear qkv_{nullptr}, out_{nullptr};
  std::shared_ptr<RmsNorm> norm_;  // unless `normalizer`
};

MixerEntry linear_attention_entry();

}  // namespace hopmix::nn

// Softmax attention on a pattern (Sparse Transformer, arXiv 1904.10509; Longformer, 2004.05150;
// BigBird, 2007.14062).
#pragma once

#include "hopmix/nn/cached_mixer.h"
#include "hopmix/nn/pattern_rows.h"

namespace hopmix::nn {

struct SparseAttentionConfig : HeadsConfig {
  Pattern pattern;  // what a token reads besides itself
};

/// y_i = sum over j in row i and j = i of softmax_j(q_i . k_j / sqrt(D)) v_j: a generalized linear
/// recurrence with B = 0.
class SparseAttention : public CachedMixer {
 public:
  explicit SparseAttention(const SparseAttentionConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;

 protected:
  Tensor attend(const std::vector<Tensor>& qkv, State& state, Context& context) override;

 private:
  PatternRows rows_;
};

MixerEntry sparse_attention_entry();

/// `window = w` reads the token itself and the w - 1 tokens before it.
MixerEntry local_attention_entry();

}  // namespace hopmix::nn

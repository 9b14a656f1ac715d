// Softmax attention on a pattern (Sparse Transformer, arXiv 1904.10509; Longformer, 2004.05150;
// BigBird, 2007.14062).
#pragma once

#include "hopmix/nn/heads.h"
#include "hopmix/nn/past.h"
#include "hopmix/nn/pattern_rows.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

struct SparseAttentionConfig : HeadsConfig {
  std::string pattern = "dense";  // what a token reads besides itself
};

/// y_i = sum over j in row i and j = i of softmax_j(q_i . k_j / sqrt(D)) v_j: a generalized linear
/// recurrence with B = 0.
class SparseAttention : public Mixer {
 public:
  explicit SparseAttention(const SparseAttentionConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  State initial_state(int64_t batch) const override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor step_each(const Tensor& x, std::span<State* const> states,
                   std::span<Context> contexts) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  const Past* past() const override { return &past_; }
  int64_t state_bytes(int64_t t) const override;
  void check_length(int64_t tokens) const override { past_.check_length(tokens); }

 private:
  Tensor attend(const std::vector<Tensor>& qkv, State& state);  // one token -> [B,width]

  SparseAttentionConfig config_;
  PatternRows rows_;
  Past past_;
  Linear qkv_{nullptr}, out_{nullptr};
};

MixerEntry sparse_attention_entry();

/// `window = w` reads the token itself and the w - 1 tokens before it.
MixerEntry local_attention_entry();

}  // namespace hopmix::nn

// Causal softmax attention (Vaswani et al. 2017). It can publish its cache and its best positions
// for later layers.
#pragma once

#include <memory>

#include "hopmix/nn/heads.h"
#include "hopmix/nn/past.h"
#include "hopmix/nn/publication.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

struct FullAttentionConfig : HeadsConfig {
  int64_t kv_heads = 4;    // divides heads; consecutive query heads share keys and values
  int64_t key_width = 16;  // width of a head's q, k and v
  std::string mem = "";    // name to publish under; empty publishes nothing
  std::shared_ptr<Publication> publication = nullptr;  // what is published
};

/// y_i = sum over j <= i of softmax_j(q_i . k_j / sqrt(D)) v_j, by ops::attention, or by
/// attention_topk if a reader of the publication needs the selection.
class FullAttention : public Mixer {
 public:
  explicit FullAttention(const FullAttentionConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  State initial_state(int64_t batch) const override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor step_each(const Tensor& x, std::span<State* const> states,
                   std::span<Context> contexts) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  const Past* past() const override { return &past_; }
  void check_state(const State& state) const override;
  int64_t state_bytes(int64_t t) const override;
  bool shares_cache() const override { return config_.publication != nullptr; }

 private:
  std::vector<Tensor> project(const Tensor& input, const Starts& start);  // q, k, v
  // One token -> [B,heads * key_width].
  Tensor attend(const std::vector<Tensor>& qkv, State& state, Context& context);
  // What the readers need, known only later: they are built after this layer.
  Publication asked() const { return config_.publication ? *config_.publication : Publication(); }

  FullAttentionConfig config_;
  Past past_;
  Linear qkv_{nullptr}, out_{nullptr};
};

/// Keys `heads`, `kv_heads`, `head_width`, and `mem`, the name to publish under.
MixerEntry full_attention_entry();

}  // namespace hopmix::nn

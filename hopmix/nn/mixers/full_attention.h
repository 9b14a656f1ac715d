// Causal softmax attention (Vaswani et al. 2017). It can publish its cache and its best positions
// for later layers.
#pragma once

#include <optional>

#include "hopmix/nn/cached_mixer.h"
#include "hopmix/nn/publication.h"

namespace hopmix::nn {

struct FullAttentionConfig : HeadsConfig {
  int64_t kv_heads = 4;    // divides heads; consecutive query heads share keys and values
  int64_t key_width = 16;  // width of a head's q, k and v
  std::string mem = "";    // name to publish under; empty publishes nothing
  std::optional<Publication> publication = {};  // what is published
};

/// y_i = sum over j <= i of softmax_j(q_i . k_j / sqrt(D)) v_j, by ops::attention, or by
/// attention_topk if a reader of the publication needs the selection.
class FullAttention : public CachedMixer {
 public:
  explicit FullAttention(const FullAttentionConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  void check_state(const State& state) const override;
  bool shares_cache() const override { return config_.publication.has_value(); }

 protected:
  std::vector<Tensor> project(const Tensor& input, const Starts& start) override;  // q, k, v
  Tensor attend(const std::vector<Tensor>& qkv, State& state, Context& context) override;

 private:
  FullAttentionConfig config_;
  Publication asked_;  // what the readers need; nothing if there are none
};

/// Keys `heads`, `kv_heads`, `head_width`, and `mem`, the name to publish under.
MixerEntry full_attention_entry();

}  // namespace hopmix::nn

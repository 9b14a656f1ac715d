// ChaCAL inside blocks, one summary a block across them: time O(T^(4/3)) with blocks of T^(1/3).
#pragma once

#include "hopmix/nn/linear.h"
#include "hopmix/nn/mixers/chacal.h"

namespace hopmix::nn {

struct BlockChacalConfig : ChacalConfig {
  int64_t block = 16;  // tokens a block
};

/// ops::block_chacal (its definition). A finished block leaves one key and one value; the open one
/// keeps k and w of its tokens, and what it read of the earlier blocks at its first token.
class BlockChacal : public Mixer {
 public:
  explicit BlockChacal(const BlockChacalConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  State initial_state(int64_t batch) const override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  int64_t state_bytes(int64_t t) const override;

 private:
  BlockChacalConfig config_;
  Linear qkv_{nullptr}, out_{nullptr};
};

MixerEntry block_chacal_entry();

}  // namespace hopmix::nn

// ChaCAL inside blocks, with one summary per block across them: time O(T^(4/3)) with blocks of
// T^(1/3).
#pragma once

#include "hopmix/nn/mixers/chacal.h"

namespace hopmix::nn {

struct BlockChacalConfig : ChacalConfig {
  int64_t block = 16;  // tokens per block
};

/// See ops::block_chacal for the definition. A finished block leaves one key and one value; the
/// open block keeps k and w of its tokens, and what its first token read from the earlier blocks.
class BlockChacal : public Mixer {
 public:
  explicit BlockChacal(const BlockChacalConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  void check_state(const State& state) const override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  int64_t state_bytes(int64_t t) const override;

 private:
  BlockChacalConfig config_;
  Linear qkv_{nullptr}, out_{nullptr};
};

MixerEntry block_chacal_entry();

}  // namespace hopmix::nn

// Mixers side by side in one block.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hopmix/nn/norm.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

/// y = mean over branches of RMSNorm(branch(x)), the norms with weights of their own, so that no
/// branch drowns the others (Hymba, arXiv 2411.13676, section 2.1).
class Parallel : public Mixer {
 public:
  /// At least one branch, each on [B,T,width].
  Parallel(int64_t width, const std::vector<std::shared_ptr<Mixer>>& branches);

  Tensor forward(const Tensor& x, Context& context) override;
  State initial_state(int64_t batch) const override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  int64_t state_bytes(int64_t t) const override;

 private:
  std::vector<std::shared_ptr<Mixer>> branches_;
  std::vector<std::shared_ptr<RmsNorm>> norms_;
};

/// Key `branches`: a list of tables, each a mixer with its keys; a Mamba and local attention if
/// absent.
MixerEntry parallel_entry();

}  // namespace hopmix::nn

// Mixers side by side in one block.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hopmix/nn/linear.h"
#include "hopmix/nn/norm.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

enum class Combine {
  kMean,   // mean over branches of RMSNorm(branch(x)), each norm with its own weights, so that no
           // branch dominates (Hymba, arXiv 2411.13676, section 2.1)
  kGates,  // sum over branches of sigmoid(w_b . x) branch(x), one gate per branch (HySparse, arXiv
           // 2602.03560)
};

class Parallel : public Mixer {
 public:
  /// At least one branch, each on [B,T,width].
  Parallel(int64_t width, const std::vector<std::shared_ptr<Mixer>>& branches,
           Combine combine = Combine::kMean);

  Tensor forward(const Tensor& x, Context& context) override;
  State initial_state(int64_t batch) const override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor step_each(const Tensor& x, std::span<State* const> states,
                   std::span<Context> contexts) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  int64_t state_bytes(int64_t t) const override;
  void check_length(int64_t tokens) const override;
  void check_step(int64_t position) const override;
  void check_state(const State& state) const override;
  bool shares_cache() const override;

 private:
  // `part(b)` returns the wanted rows of branch b's output.
  template <typename Part>
  Tensor combine(const Tensor& gates, const Part& part);
  // The same for x, where `of_branch(mixer, its states)` returns the output.
  template <typename Advance>
  Tensor advance(const Tensor& x, std::span<State* const> states, const Advance& of_branch);

  std::vector<std::shared_ptr<Mixer>> branches_;
  std::vector<std::shared_ptr<RmsNorm>> norms_;  // for kMean
  Linear gates_{nullptr};
};

/// Key `branches`: a list of tables, each a mixer with its keys; by default Mamba and local
/// attention. Key `combine`: mean or gates.
MixerEntry parallel_entry();

/// A recurrent layer that also attends to the kappa entries retrieved from a published cache (MURA,
/// Definition 2.3). Keys `mem`, `kappa`, and `recurrent`, a table with a mixer, by default
/// gated_deltanet.
MixerEntry topk_access_entry();

/// The sparse layer of HySparse (arXiv 2602.03560): attention to the retrieved entries of a
/// published cache, next to a sliding window with its own keys and values. Keys `mem`, `kappa`,
/// `window`.
MixerEntry hysparse_entry();

}  // namespace hopmix::nn

// Generalized linear recurrence on any pattern (arXiv 2605.31367): Y = (I - B)^{-1} A X, with A and
// B computed from the input.
#pragma once

#include "hopmix/nn/cached_mixer.h"
#include "hopmix/nn/mixers/glr_form.h"
#include "hopmix/nn/norm.h"

namespace hopmix::nn {

struct GlrConfig : HeadsConfig {
  Pattern pattern;
  /// shared:      A = B D + D' (appendix B.3): one softmax, one cached vector z_j per token.
  /// independent: A is a softmax over the pattern and the token itself, B a gated softmax with q
  ///              and k of its own.
  /// normalized:  one softmax over direct and recurrent terms together, with logits s_ij + d_j,
  ///              d_self_i and s_ij + g_i; every output is a convex combination of inputs, followed
  ///              by RMSNorm per head.
  /// normalized_read: the same with g_j instead of g_i: one cached vector per token.
  std::string coefficients = "shared";
};

/// Gates, d and d_self come from a linear map of the input, one each per head, with bias
/// initialized to 0. They are its sigmoids, or the logits themselves if normalized.
class Glr : public CachedMixer {
 public:
  explicit Glr(const GlrConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;

 protected:
  std::vector<Tensor> project(const Tensor& input, const Starts& start) override;
  Tensor attend(const std::vector<Tensor>& projections, State& state, Context& context) override;
  Tensor read_out(const Tensor& y) override;

 private:
  Tensor normalize(const Tensor& y);  // unless the form is not normalized

  const GlrForm& form_;
  PatternRows rows_;
  Linear gates_{nullptr};
  std::shared_ptr<RmsNorm> norm_;  // only if normalized
};

MixerEntry glr_entry();

}  // namespace hopmix::nn

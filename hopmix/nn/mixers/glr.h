// Generalized linear recurrence on any pattern (arXiv 2605.31367): Y = (I - B)^{-1} A X, with A and
// B computed from the input.
#pragma once

#include "hopmix/nn/heads.h"
#include "hopmix/nn/norm.h"
#include "hopmix/nn/past.h"
#include "hopmix/nn/pattern_rows.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

struct GlrConfig : HeadsConfig {
  std::string pattern = "k^2+1";
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
class Glr : public Mixer {
 public:
  explicit Glr(const GlrConfig& config);

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
  struct Projections {
    Tensor q, k, v;          // [B,T,H,D]: for B, and the values
    Tensor q_in, k_in;       // [B,T,H,D]: for A, if independent
    Tensor gate, d, d_self;  // [B,T,H]; the last two unless independent

    Projections row(size_t b) const;
  };
  struct Cached {
    std::vector<std::string> vectors, scalars;  // a head
  };
  Projections project(const Tensor& input, const Starts& start);
  bool shared() const { return config_.coefficients == "shared"; }
  bool independent() const { return config_.coefficients == "independent"; }
  bool normalized() const { return config_.coefficients.starts_with("normalized"); }
  bool gate_on_read() const { return config_.coefficients == "normalized_read"; }
  Cached cached() const;
  /// [B,T,H,D] of whole sequences, before norm and map.
  Tensor solve(const Projections& p, const Packing& packing = {});
  Past::Entries entries(const Projections& p, const Tensor& y) const;  // [B,T,...], to cache
  Tensor normalize(const Tensor& y);
  // Softmax attention to the entries cached under these names, and to `own`: [B,H,D].
  Tensor read_past(const Tensor& q, const char* k, const char* v, const State& state,
                   const std::optional<std::pair<Tensor, Tensor>>& own = {}) const;
  // One token, from its projections -> [B,H,D].
  Tensor advance(const Projections& p, State& state);
  Tensor step_shared(const Projections& p, State& state);
  Tensor step_independent(const Projections& p, State& state);
  Tensor step_normalized(const Projections& p, State& state);

  GlrConfig config_;
  PatternRows rows_;
  Past past_;
  Linear qkv_{nullptr}, gates_{nullptr}, out_{nullptr};
  std::shared_ptr<RmsNorm> norm_;  // only if normalized
};

MixerEntry glr_entry();

}  // namespace hopmix::nn

// Chain and causal attention layer (Fagnou et al. 2024, arXiv 2410.05565).
#pragma once

#include "hopmix/nn/heads.h"
#include "hopmix/nn/past.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

struct ChacalConfig : HeadsConfig {
  double gamma = 0.9;  // the fraction passed on at each hop, in [0, 1); 0 is attention
};

/// Reads `gamma`.
double read_gamma(config::Table& table, double fallback);

/// Y = (1 - gamma) A (I - gamma A)^{-1} V with A causal softmax attention, self included: a token
/// reads the values at the ends of all chains of reads. With W = (I - gamma A)^{-1} V, w_i = v_i +
/// gamma sum_j A_ij w_j and y_i = (1 - gamma) sum_j A_ij w_j: k and w are cached.
class Chacal : public Mixer {
 public:
  explicit Chacal(const ChacalConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  State initial_state(int64_t batch) const override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor step_each(const Tensor& x, std::span<State* const> states,
                   std::span<Context> contexts) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  const Past* past() const override { return &past_; }
  int64_t state_bytes(int64_t t) const override;

 private:
  Tensor mix(const std::vector<Tensor>& qkv, State& state);  // one token -> [B,width]

  ChacalConfig config_;
  Past past_;
  Linear qkv_{nullptr}, out_{nullptr};
};

/// One token's row of W and of mix = A W: `weights` [B,H,c+1] over the past and itself, `past`
/// [B,c,H,D] the past rows of W, v [B,H,D].
std::pair<Tensor, Tensor> chacal_step(const Tensor& weights, const Tensor& past, const Tensor& v,
                                      double gamma);

MixerEntry chacal_entry();

}  // namespace hopmix::nn

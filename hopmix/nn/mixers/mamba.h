// Mamba (Gu and Dao 2023, arXiv 2312.00752, figure 3): a state-space recurrence whose step, input
// and output maps depend on the token.
#pragma once

#include "hopmix/nn/linear.h"
#include "hopmix/nn/registry.h"
#include "hopmix/nn/short_convolution.h"

namespace hopmix::nn {

struct MambaConfig {
  int64_t width = 64;  // model width
  int64_t expand = 2;  // inner width E = expand * width
  int64_t state = 16;  // S, numbers per channel
  int64_t conv = 4;    // taps of the convolution
  int64_t inner() const { return expand * width; }
  int64_t step_rank() const { return (width + 15) / 16; }
};

/// (u, z) = W_in x; u = SiLU(conv(u)); (r, B, C) = W_x u; delta = softplus(W_d r + b_d); y =
/// selective_scan(u, delta, A, B, C, D); out = W_out (y SiLU(z)). A = -exp(log_a) is initialized to
/// -(1 .. S), D to 1, softplus(b_d) log-uniform in [0.001, 0.1].
class Mamba : public Mixer {
 public:
  explicit Mamba(const MambaConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  bool same_step_anywhere() const override { return true; }

 private:
  /// u [B,T,E] after the convolution -> (y [B,T,E], state [B,E,S]), from a state, if there is one.
  std::tuple<Tensor, Tensor> scan(const Tensor& u, const std::optional<Tensor>& state,
                                  const std::optional<Tensor>& cu_seqlens = {});

  MambaConfig config_;
  Linear in_{nullptr}, inputs_{nullptr}, step_{nullptr}, out_{nullptr};
  std::shared_ptr<ShortConvolution> conv_;
  Tensor log_a_;  // [E * S]: a vector, so that weight decay skips it
  Tensor d_;      // [E]
};

MixerEntry mamba_entry();

}  // namespace hopmix::nn

// The recurrent block of Griffin (De et al. 2024, arXiv 2402.19427, section 2.3) with its RG-LRU.
#pragma once

#include "hopmix/nn/heads.h"
#include "hopmix/nn/short_convolution.h"

namespace hopmix::nn {

struct GriffinConfig {
  int64_t width = 64;            // model width
  int64_t heads = 4;             // blocks in the gates' matrices
  int64_t recurrent_width = 64;  // a multiple of heads
  int64_t conv = 4;              // taps of the convolution
};

/// out = W_out (GELU(W_g x) h) with u = conv(W_u x) and, with block-diagonal matrices W_a and W_i,
///   r_t = sigmoid(W_a u_t + b_a),  i_t = sigmoid(W_i u_t + b_i),
///   a_t = exp(-8 softplus(lambda) r_t),  h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t u_t).
/// lambda is initialized so that exp(-8 softplus(lambda)) is uniform in [0.9, 0.999].
class Griffin : public Mixer {
 public:
  explicit Griffin(const GriffinConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  bool same_step_anywhere() const override { return true; }

 private:
  /// u [B,T,R] -> (a, the added term), each [B,T,R] in the type of the state.
  std::pair<Tensor, Tensor> gates(const Tensor& u);

  GriffinConfig config_;
  Linear gate_{nullptr}, value_{nullptr}, out_{nullptr};
  std::shared_ptr<ShortConvolution> conv_;
  Tensor gates_;       // [2,heads,R/heads,R/heads]: for r, for i
  Tensor gates_bias_;  // [2 R]
  Tensor lambda_;      // [R]
};

MixerEntry griffin_entry();

}  // namespace hopmix::nn

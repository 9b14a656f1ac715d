// The short convolution that recurrent layers have before their recurrence.
#pragma once

#include "hopmix/nn/mixer.h"

namespace hopmix::nn {

struct ShortConvolutionConfig {
  int64_t taps = 4;  // tokens that are read, the own one included
  bool bias = true;  // begins at 0
  bool silu = true;  // SiLU after it
};

/// Causal depthwise convolution: every channel weighs its last `taps` tokens. Weights begin as
/// PyTorch draws those of a convolution, uniform within 1 / sqrt(taps).
class ShortConvolution : public torch::nn::Module {
 public:
  explicit ShortConvolution(int64_t width, const ShortConvolutionConfig& config = {});

  /// x [B,T,width] -> [B,T,width]; nothing crosses from one packed sequence to the next.
  Tensor forward(const Tensor& x, const std::optional<Tensor>& cu_seqlens = {});

  /// The next tokens of a stream, [B,T,width] -> [B,T,width]; keeps the taps - 1 last inputs in
  /// state[name].
  Tensor prefill(const Tensor& x, State& state, const std::string& name = "conv");

  /// One token [B,width] -> [B,width].
  Tensor step(const Tensor& x, State& state, const std::string& name = "conv");

  /// Puts the zeros before the first token into a fresh state.
  void init_state(int64_t batch, State& state, const std::string& name = "conv") const;

  /// Elements that it adds to the state of a sequence.
  int64_t state_elements() const { return (config_.taps - 1) * weight.size(0); }

  Tensor weight;  // [width,taps]; the last column weighs the token itself
  Tensor bias;    // [width], or undefined

 private:
  ShortConvolutionConfig config_;
};

}  // namespace hopmix::nn

// The short convolution that precedes the recurrence in recurrent layers.
#pragma once

#include "hopmix/nn/mixer.h"

namespace hopmix::nn {

struct ShortConvolutionConfig {
  int64_t taps = 4;  // tokens read, including the current one
  bool bias = true;  // initialized to 0
  bool silu = true;  // followed by SiLU
};

/// Causal depthwise convolution: each channel is a weighted sum of its last `taps` tokens. Weights
/// are initialized as in PyTorch's convolutions, uniform within 1 / sqrt(taps).
class ShortConvolution : public torch::nn::Module {
 public:
  explicit ShortConvolution(int64_t width, const ShortConvolutionConfig& config = {});

  /// x [B,T,width] -> [B,T,width]; nothing crosses from one packed sequence to the next.
  Tensor forward(const Tensor& x, const std::optional<Tensor>& cu_seqlens = {});

  /// The next tokens of a stream, [B,T,width] -> [B,T,width]; keeps the last taps - 1 inputs in
  /// state[name].
  Tensor prefill(const Tensor& x, State& state, const std::string& name = "conv");

  /// One token [B,width] -> [B,width].
  Tensor step(const Tensor& x, State& state, const std::string& name = "conv");

  /// What it adds to a state: the inputs before the first token.
  StateParts state(const std::string& name = "conv") const {
    return {{name, {{config_.taps - 1, weight.size(0)}}}};
  }

  Tensor weight;  // [width,taps]; the last column applies to the current token
  Tensor bias;    // [width], or undefined

 private:
  ShortConvolutionConfig config_;
};

}  // namespace hopmix::nn

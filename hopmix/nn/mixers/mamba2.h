// Mamba-2 (Dao and Gu 2024, arXiv 2405.21060).
#pragma once

#include "hopmix/nn/heads.h"
#include "hopmix/nn/matrix_state.h"
#include "hopmix/nn/norm.h"
#include "hopmix/nn/registry.h"
#include "hopmix/nn/short_convolution.h"

namespace hopmix::nn {

struct Mamba2Config {
  int64_t width = 64;
  int64_t expand = 2;       // inner width over model width
  int64_t head_width = 0;   // must divide the inner width; 0: its largest divisor up to 64 that
                            // leaves at least 4 heads
  int64_t state = 64;       // rows of the state per head
  int64_t convolution = 4;  // taps

  int64_t inner() const { return expand * width; }
};

/// z, x, B, C, dt = maps of the input; x, B and C pass through a short convolution with SiLU (in
/// place of the token shift); dt = softplus(dt + bias). For each head, with A < 0 and B and C
/// shared by all heads,
///   S_t = e^{dt_t A} S_{t-1} + B_t (dt_t x_t)^T,  y_t = C_t S_t + D x_t,
/// then RMSNorm(y SiLU(z)) and the output map. Initially dt is log-uniform in [1e-3, 1e-1], -A
/// uniform in [1, 16] and D = 1.
class Mamba2 : public Mixer {
 public:
  explicit Mamba2(const Mamba2Config& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  bool same_step_anywhere() const override { return true; }

 protected:
  int64_t heads() const { return config_.inner() / config_.head_width; }

  /// S_t = e^{g_t} S_{t-1} + k_t v_t^T -> q_t S_t [B,T,heads,head_width], for the layer's input u
  /// [B,T,width]. Continues from `state` and advances it, if there is one.
  virtual Tensor recur(const Tensor& u, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& g, State* state, const std::optional<Tensor>& cu_seqlens);

 private:
  /// The layer's input, z [B,T,inner], convolved x, B, C [B,T,*], dt [B,T,heads] -> [B,T,inner].
  Tensor mix(const Tensor& u, const Tensor& z, const Tensor& xbc, const Tensor& dt, State* state,
             const std::optional<Tensor>& cu_seqlens = {});
  /// The widths of z, of x, B and C together, and of dt.
  std::vector<int64_t> widths() const;

  Mamba2Config config_;
  Linear in_{nullptr}, out_{nullptr};
  std::shared_ptr<ShortConvolution> convolution_;
  std::shared_ptr<RmsNorm> norm_;
  Tensor dt_bias_, log_a_, d_;  // [heads]
};

/// Reads the keys of a table.
Mamba2Config read_mamba2(config::Table& table, const BlockDefaults& defaults);

MixerEntry mamba2_entry();

}  // namespace hopmix::nn

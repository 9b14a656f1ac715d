// DeltaNet and Gated DeltaNet: each head's matrix state is corrected by the error of its
// prediction.
#pragma once

#include "hopmix/nn/linear.h"
#include "hopmix/nn/matrix_state.h"
#include "hopmix/nn/norm.h"
#include "hopmix/nn/registry.h"
#include "hopmix/nn/short_convolution.h"

namespace hopmix::nn {

struct DeltaNetConfig {
  int64_t width = 64;  // model width
  int64_t heads = 4;
  int64_t head_width = 16;            // of q and k
  int64_t expand_v = 1;               // value width over key width
  int64_t conv = 4;                   // tokens that the short convolution reads
  bool gated = false;                 // with decay and output gate: Gated DeltaNet
  bool negative_eigenvalues = false;  // beta in (0, 2), so that I - beta k k^T may reflect

  int64_t keys() const { return heads * head_width; }
  int64_t values() const { return keys() * expand_v; }
};

/// q, k and v are linear maps followed by a short convolution and SiLU; q and k have norm 1 per
/// head. With beta_t = sigmoid(linear), doubled if negative_eigenvalues,
///
///   S_t = e^{g_t} (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,  o_t = S_t^T q_t / sqrt(D),
///
/// then RMSNorm per head and the output map. DeltaNet (Yang et al. 2024, arXiv 2406.06484) has g =
/// 0. Gated DeltaNet (arXiv 2412.06464) has g_t = -e^A softplus(linear + dt) per head and
/// multiplies the normalized output by SiLU(linear); e^A is initialized uniform in [1, 16] and
/// softplus(dt) log-uniform in [1e-3, 0.1]. For negative eigenvalues see Grazzi et al. 2024, arXiv
/// 2411.12537. The convolution takes the place of the token shift.
class DeltaNet : public Mixer {
 public:
  explicit DeltaNet(const DeltaNetConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  bool same_step_anywhere() const override { return true; }

 protected:
  /// The recurrence on heads [B,T,H,*] of the layer's input x [B,T,width], without g if not gated
  /// -> [B,T,H,DV]. Continues from `state` and advances it, if there is one.
  virtual Tensor recur(const Tensor& x, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& g, const Tensor& beta, State* state,
                       const std::optional<Tensor>& cu_seqlens);

 private:
  /// From x [B,T,width] and qkv [B,T,2 keys + values] after the convolution.
  Tensor mix(const Tensor& x, const Tensor& qkv, State* state,
             const std::optional<Tensor>& cu_seqlens = {});

  /// From heads o [...,H,DV] and the input x [...,width] of their tokens.
  Tensor read_out(const Tensor& o, const Tensor& x);

  DeltaNetConfig config_;
  Linear qkv_{nullptr}, beta_{nullptr}, decay_{nullptr}, gate_{nullptr}, out_{nullptr};
  Tensor log_a_, dt_bias_;  // [H]
  std::shared_ptr<ShortConvolution> conv_;
  std::shared_ptr<GatedHeadNorm> norm_;
};

/// Reads the keys of a table.
DeltaNetConfig read_deltanet(config::Table& table, const BlockDefaults& defaults, bool gated);

MixerEntry deltanet_entry();
MixerEntry gated_deltanet_entry();

}  // namespace hopmix::nn

// First-order gated linear recurrence: the diagonal state-space model that arXiv 2605.31367
// compares with.
#pragma once

#include "hopmix/nn/heads.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

struct GatedLinearRecurrenceConfig : HeadsConfig {
  std::string decay = "channel";  // one decay per channel, or per head
};

/// y_t = a_t y_{t-1} + b_t v_t with a_t, b_t sigmoids of linear maps of the input (section 3.2 of
/// the paper: B on the subdiagonal, A diagonal). With decay = channel, the biases of a are spread
/// over [0, 5], so that channels have different time scales; with decay = head they start at 0.
class GatedLinearRecurrence : public Mixer {
 public:
  explicit GatedLinearRecurrence(const GatedLinearRecurrenceConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  bool same_step_anywhere() const override { return true; }

 protected:
  /// input [B,T,*] -> (a, b v), each [B,T,width].
  std::pair<Tensor, Tensor> project(const Tensor& input);

  GatedLinearRecurrenceConfig config_;
  Linear value_{nullptr}, gates_{nullptr}, out_{nullptr};
};

/// Reads the keys of GatedLinearRecurrenceConfig.
GatedLinearRecurrenceConfig read_gated_recurrence(config::Table& table,
                                                  const BlockDefaults& defaults);

MixerEntry gated_linear_recurrence_entry();

}  // namespace hopmix::nn

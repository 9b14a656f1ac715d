// Gated linear recurrence whose memory is cut at block edges: the jagged window of sliding window
// recurrences (Secrieru et al. 2025, arXiv 2512.13921).
#pragma once

#include "hopmix/nn/mixers/gated_linear_recurrence.h"

namespace hopmix::nn {

struct SlidingWindowRecurrenceConfig : GatedLinearRecurrenceConfig {
  int64_t block = 16;  // tokens per block; a token sees its own block and the one before
};

/// y_t = a_t y_{t-1} + b_t v_t, started from 0 at the beginning of the block before that of t, with
/// the gates and values of GatedLinearRecurrence, to which it is equal while the text is at most
/// two blocks long. The state is two vectors: y, and y started at the beginning of its own block.
class SlidingWindowRecurrence : public GatedLinearRecurrence {
 public:
  explicit SlidingWindowRecurrence(const SlidingWindowRecurrenceConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  bool same_step_anywhere() const override { return false; }  // depends on the block

 private:
  int64_t block_;
};

MixerEntry sliding_window_recurrence_entry();

}  // namespace hopmix::nn

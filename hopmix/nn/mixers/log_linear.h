// Log-linear Mamba-2 and Gated DeltaNet (Guo et al. 2025, arXiv 2506.04761): the same layers with a
// state for each of O(log T) buckets of the past instead of one.
#pragma once

#include "hopmix/nn/fenwick_state.h"
#include "hopmix/nn/mixers/deltanet.h"
#include "hopmix/nn/mixers/mamba2.h"

namespace hopmix::nn {

/// Mamba2 with y_t = sum over levels l of lambda_t^l (C_t S_t^l) + D x_t, where S^l is the state of
/// what was written in bucket l, and lambda_t comes from LevelFactors. Texts have at most 2^(levels
/// - 1) tokens.
class LogLinearMamba2 : public Mamba2 {
 public:
  LogLinearMamba2(const Mamba2Config& config, int64_t levels);

  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  int64_t state_bytes(int64_t t) const override;
  bool same_step_anywhere() const override { return false; }
  void check_length(int64_t tokens) const override { check_levels(factors_->levels(), tokens); }

 protected:
  Tensor recur(const Tensor& u, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
               State* state, const std::optional<Tensor>& cu_seqlens) override;

 private:
  std::shared_ptr<LevelFactors> factors_;
};

/// The same for Gated DeltaNet: o_t = sum over l of lambda_t^l S_t^l^T q_t / sqrt(D).
class LogLinearGatedDeltaNet : public DeltaNet {
 public:
  LogLinearGatedDeltaNet(const DeltaNetConfig& config, int64_t levels);

  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  int64_t state_bytes(int64_t t) const override;
  bool same_step_anywhere() const override { return false; }
  void check_length(int64_t tokens) const override { check_levels(factors_->levels(), tokens); }

 protected:
  Tensor recur(const Tensor& x, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
               const Tensor& beta, State* state, const std::optional<Tensor>& cu_seqlens) override;

 private:
  std::shared_ptr<LevelFactors> factors_;
};

MixerEntry log_linear_mamba2_entry();
MixerEntry log_linear_gated_deltanet_entry();

}  // namespace hopmix::nn

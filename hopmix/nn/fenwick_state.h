// The states of log-linear layers (arXiv 2506.04761): one matrix per head for each bucket of the
// Fenwick partition of the past (ops/fenwick.h), and the factors that read them.
#pragma once

#include "hopmix/nn/linear.h"
#include "hopmix/nn/mixer.h"

namespace hopmix::nn {

/// softplus(w o (linear map of the input)), w [heads,levels] initialized to ones: the factors
/// lambda of the paper's layers.
class LevelFactors : public torch::nn::Module {
 public:
  LevelFactors(int64_t width, int64_t heads, int64_t levels);

  /// x [B,T,width] -> [B,T,heads,levels].
  Tensor forward(const Tensor& x);

  int64_t levels() const { return weight_.size(1); }

 private:
  Linear map_{nullptr};
  Tensor weight_;
};

/// Throws Error if a text of this many tokens needs more levels.
void check_levels(int64_t levels, int64_t tokens);

/// The state "S" [B,buckets,heads,keys,values], nearest bucket first; there are as many buckets as
/// the number of past tokens has bits set.
StateParts fenwick_state(int64_t heads, int64_t keys, int64_t values);

/// Bytes of its buckets for one sequence after t tokens, given the initial state.
int64_t fenwick_bytes(const State& initial, int64_t t);

/// Processes one token, at state.position. Its past buckets have become `carried`
/// [B,buckets,H,K,V]; the token writes `written` [B,H,K,V] and reads with q [B,H,K], weighted by
/// `factors` [B,H,levels]. Returns the sum over levels of factor times q S [B,H,V] and stores the
/// new buckets in the state. Throws Error if the factors have too few levels.
Tensor fenwick_step(const Tensor& carried, const Tensor& written, const Tensor& q,
                    const Tensor& factors, State& state);

}  // namespace hopmix::nn

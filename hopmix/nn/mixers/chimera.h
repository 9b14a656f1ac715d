// Chimera (Lahoti et al. 2025, arXiv 2510.12111) on a directed acyclic graph: a state-space model
// whose states propagate along the edges of any pattern, including dag(file).
#pragma once

#include "hopmix/nn/heads.h"
#include "hopmix/nn/norm.h"
#include "hopmix/nn/pattern_cache.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

struct ChimeraConfig : HeadsConfig {
  Pattern pattern;
  int64_t state = 16;  // rows of the state per head
};

/// z, x, B, C and two step sizes per head are maps of the input. For each head, over the edges
/// j -> i of the pattern,
///   S_i = sum_j A_ij S_j + dt_i B_i x_i^T,  y_i = C_i S_i + D x_i,
///   A_ij = e^{-(dt_i + ds_j + de_ij) / 3} / (number of edges into i),
/// so that S = (I - A)^{-1} (dt B x^T), the resolvent of the graph; then RMSNorm(y SiLU(z)) and the
/// output map. dt and ds are softplus(map + bias). de, the paper's step size of an edge, is
/// softplus of a parameter per number of bits of i - j, the only feature of an edge here. Rows of A
/// sum to less than 1, so states stay bounded on every graph. B and C are shared by all heads. Step
/// sizes are initialized log-uniform in [1e-3, 1e-1], and D to 1.
class Chimera : public Mixer {
 public:
  explicit Chimera(const ChimeraConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor prefill(const Tensor& x, State& state, Context& context) override;
  const PatternCache* past() const override { return &cache_; }
  int64_t state_bytes(int64_t t) const override;
  void check_length(int64_t tokens) const override { cache_.check_length(tokens); }

 private:
  struct Projections {
    Tensor z, x;      // [B,T,width], [B,T,H,D]
    Tensor read;      // C [B,T,1,state]
    Tensor written;   // dt B x^T [B,T,H,state,D]
    Tensor to, from;  // dt, ds [B,T,H]
  };
  Projections project(const Tensor& input);
  /// For every edge, in the order of the pattern's rows.
  struct Edges {
    Tensor targets, sources;  // i, j of j -> i in a row of tokens
    Tensor lengths, shares;   // i - j, number of edges into i
  };
  /// The edges of the sequences packed in a row of `time` tokens.
  Edges edges(int64_t time, const Packing& packing);
  /// The states [B,T,H,state,D] of whole sequences.
  Tensor solve(const Projections& p, const Packing& packing = {});
  /// From the states [B,T,H,state,D].
  Tensor read_out(const Projections& p, const Tensor& states);
  /// de of edges of these lengths [n] -> [n,H].
  Tensor edge_steps(const Tensor& lengths) const;

  ChimeraConfig config_;
  PatternCache cache_;
  Linear in_{nullptr}, out_{nullptr};
  std::shared_ptr<RmsNorm> norm_;
  Tensor bias_, edges_, d_;  // [2,H], [bits,H], [H]
  int64_t length_ = -1;      // length of the text that these belong to
  Tensor row_ptr_, cols_;
  Edges of_text_;
};

MixerEntry chimera_entry();

}  // namespace hopmix::nn

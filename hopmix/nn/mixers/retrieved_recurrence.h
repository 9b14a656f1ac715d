// A generalized linear recurrence whose pattern is another layer's selection: chains of links of
// any length in one layer (docs/retrieved-recurrence.md).
#pragma once

#include <string>

#include "hopmix/nn/heads.h"
#include "hopmix/nn/pattern_cache.h"
#include "hopmix/nn/publication.h"

namespace hopmix::nn {

struct RetrievedRecurrenceConfig : HeadsConfig {
  std::string mem;                // the publication to read: cache, scores and selection
  Publication publication;        // its sizes
  int64_t kappa = 8;              // links per token: its best strictly earlier positions
  std::string form = "register";  // or "scalar"
  int64_t hops = 4;               // K, the length of the shift register
  std::string readout = "joint";  // register only: one vector of all hops, or "shared"

  bool scalar() const { return form == "scalar"; }
};

/// With P_ij the softmax over the kappa best j < i of the publisher's scores, and v its values:
///
///   register  z_i^(0) = v_i,  z_i^(r) = gate_i sum_j P_ij z_j^(r-1),  r = 1..hops: the recurrence
///             with B = gate P (x) shift. One map reads all z^(r) ("joint"), or the same map reads
///             each z^(r), r >= 1, giving one vector per hop ("shared").
///   scalar    z_i = (d_i + d'_i) v_i + gate_i sum_j P_ij z_j, y_i = z_i - d_i v_i, with `heads`
///             signed gates: glr on the retrieved pattern.
class RetrievedRecurrence : public Mixer {
 public:
  explicit RetrievedRecurrence(const RetrievedRecurrenceConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  const PatternCache* past() const override { return &cache_; }
  int64_t state_bytes(int64_t t) const override;
  bool shares_cache() const override { return true; }
  bool one_vector_a_hop() const override { return config_.readout == "shared"; }

 private:
  std::vector<Tensor> gates(
      const Tensor& input);      // [B,T,heads] each: gate, and of scalar d, d_self
  Tensor read(const Tensor& z);  // [...,heads,hops+1,DV] or [...,heads,DV]

  RetrievedRecurrenceConfig config_;
  PatternCache cache_;
  Linear gates_{nullptr}, out_{nullptr};
};

/// Keys `mem`, `kappa`, `form`, `hops`, `readout`, and `heads` (scalar form only).
MixerEntry retrieved_recurrence_entry();

}  // namespace hopmix::nn

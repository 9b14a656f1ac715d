// Multi-hop retrieval attention: the sparse layer of "Improving the Expressive Power of Hybrid
// Sequence Models via Multi-Hop Retrieval" (Definition 3.1).
#pragma once

#include <string>
#include <vector>

#include "hopmix/nn/heads.h"
#include "hopmix/nn/pattern_cache.h"
#include "hopmix/nn/publication.h"
#include "hopmix/nn/shared_cache.h"

namespace hopmix::nn {

struct MuraConfig : HeadsConfig {
  std::string mem;                             // the published cache to read
  Publication publication;                     // its sizes
  std::vector<int64_t> widths = {8, 1, 1, 1};  // links followed at each hop
  bool cumulative = true;    // reached in up to this many hops; otherwise in exactly this many
  bool include_self = true;  // a token may be among its own best positions
  bool own_kv = false;       // keys and values from the layer's own input, not the published ones
  bool gradient = true;      // whether the published keys and values receive a gradient from here
};

/// y_i = sum over t in N(i) of softmax_t(q_i . k_t / sqrt(D)) v_t, where N(i) are the positions
/// reached from i by chains of best-position links of the publishing attention. Head h follows the
/// links of the publisher's head h / (heads / publisher's heads).
class Mura : public Mixer {
 public:
  explicit Mura(const MuraConfig& config);

  Tensor forward(const Tensor& x, Context& context) override;
  Tensor step(const Tensor& x, State& state, Context& context) override;
  const PatternCache* past() const override { return &cache_; }
  int64_t state_bytes(int64_t t) const override;
  bool shares_cache() const override { return true; }

 private:
  Tensor queries(const Tensor& input, const Starts& start);  // rotated like the publisher's
  std::pair<Tensor, Tensor> keys_and_values(const Tensor& input, const Starts& start,
                                            const SharedCache& cache);

  MuraConfig config_;
  PatternCache cache_;  // for its own keys and values
  Linear q_{nullptr}, kv_{nullptr}, out_{nullptr};
};

/// Keys `mem`, `widths`, `set` (cumulative or exact), `include_self`, `kv` (shared or own),
/// `gradient`, `heads` (a multiple of the publisher's).
MixerEntry mura_entry();

}  // namespace hopmix::nn

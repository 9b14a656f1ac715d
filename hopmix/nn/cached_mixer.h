// The steps of a mixer whose tokens read cached entries of earlier ones.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "hopmix/nn/heads.h"
#include "hopmix/nn/pattern_cache.h"

namespace hopmix::nn {

/// An entry of a vector a head, [heads,head width], for each of `names`. Throws Error unless the
/// sizes are consistent.
std::vector<PatternCache::Entry> head_entries(const HeadsConfig& heads,
                                              const std::vector<std::string>& names);

/// One product maps the tokens of all sequences, then each sequence reads its own past.
class CachedMixer : public Mixer {
 public:
  Tensor step(const Tensor& x, State& state, Context& context) override;
  Tensor step_each(const Tensor& x, std::span<State* const> states,
                   std::span<Context> contexts) override;
  int64_t state_bytes(int64_t t) const override;
  const PatternCache* past() const override { return &cache_; }
  void check_length(int64_t tokens) const override { cache_.check_length(tokens); }

 protected:
  CachedMixer(const HeadsConfig& heads, PatternCache cache);

  /// What a token needs to read and to be read, each [B,T,...], from the shifted input, which
  /// begins at position `start`. By default q, k and v.
  virtual std::vector<Tensor> project(const Tensor& input, const Starts& start) {
    return project_qkv(qkv_, heads_, input, start);
  }

  /// Token `state.position`, whose projections are [B,1,...], reads and is cached -> [B,H,D].
  virtual Tensor attend(const std::vector<Tensor>& projections, State& state, Context& context) = 0;

  /// [...,H,D] -> [...,width].
  virtual Tensor read_out(const Tensor& y) { return out_(y.flatten(-2)); }

  HeadsConfig heads_;
  PatternCache cache_;
  Linear qkv_{nullptr}, out_{nullptr};
};

}  // namespace hopmix::nn

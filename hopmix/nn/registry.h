// All mixers by name, with a description and how to build each from a config.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hopmix/config/config.h"
#include "hopmix/nn/mixer.h"
#include "hopmix/nn/publication.h"

namespace hopmix::nn {

/// The largest size of any part of a layer. Products of three fit in 64 bits.
inline constexpr int64_t kMostSize = int64_t{1} << 20;

/// What a block inherits from its model unless its own table overrides it.
struct BlockDefaults {
  int64_t width = 64;
  int64_t heads = 4;
  int64_t length = 1024;  // of training sequences; patterns are validated at it
  bool token_shift = true;
  bool rope = false;
  int64_t end = 0;       // longest sequence, if learned positions limit it; 0: no limit
  int64_t readouts = 1;  // answers per position
  /// What earlier layers of the same model publish, by name.
  std::shared_ptr<Publications> mem = std::make_shared<Publications>();
};

/// A mixer whose keys have been read. `build` draws its weights. Build layers in their order, after
/// the keys of all have been read: only then is it known what the readers of a published cache
/// need.
struct MixerPlan {
  std::function<std::shared_ptr<Mixer>()> build;
  bool one_vector_a_hop = false;  // Mixer::one_vector_a_hop
};

/// The plan that builds an M of these arguments.
template <typename M, typename... Arguments>
MixerPlan plan(const Arguments&... arguments) {
  return {[=] { return std::make_shared<M>(arguments...); }};
}

/// One row of `hopmix mixers`.
struct MixerEntry {
  std::string name;
  std::string equation;
  std::string reads;   // time per token
  std::string cache;   // memory per token, in vectors
  std::string source;  // the paper
  /// Reads the mixer's own keys from `table`. Throws Error on an invalid value.
  std::function<MixerPlan(config::Table& table, const BlockDefaults& defaults)> read;
  bool reads_mem = false;  // its key `mem` names the cache of an earlier attention
};

/// All mixers, in listing order.
const std::vector<MixerEntry>& mixers();

/// The entry called `name`. Throws Error, suggesting the nearest name, if there is none.
const MixerEntry& find_mixer(const std::string& name);

/// Reads the mixer that `table` describes: its key `mixer`, and that mixer's own keys. Errors, also
/// those of building it, name the table.
MixerPlan read_mixer(config::Table& table, const BlockDefaults& defaults);

}  // namespace hopmix::nn

// Every mixer by name: its description and how to build it from a config.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hopmix/config/config.h"
#include "hopmix/nn/mixer.h"
#include "hopmix/nn/publication.h"

namespace hopmix::nn {

/// What a block inherits from its model unless its own table says otherwise.
struct BlockDefaults {
  int64_t width = 64;
  int64_t heads = 4;
  int64_t length = 1024;  // of the sequences in training: what patterns are checked on
  bool token_shift = true;
  bool rope = false;
  int64_t end = 0;       // most tokens of a sequence, as learned positions have it; 0: any number
  int64_t readouts = 1;  // answers that the task asks for at one position
  /// What earlier layers of the same model publish, by name.
  std::shared_ptr<Publications> mem = std::make_shared<Publications>();
};

/// One row of `hopmix mixers`.
struct MixerEntry {
  std::string name;
  std::string equation;
  std::string reads;   // time a token
  std::string cache;   // memory a token, in vectors
  std::string source;  // the paper
  /// Reads the mixer's own keys from `table`, builds it. Throws Error on a bad value.
  std::function<std::shared_ptr<Mixer>(config::Table& table, const BlockDefaults& defaults)> make;
  bool reads_mem = false;  // its key `mem` names the cache of an earlier attention
};

/// All mixers, in the order they are listed.
const std::vector<MixerEntry>& mixers();

/// The entry called `name`; Error with the nearest name if there is none.
const MixerEntry& find_mixer(const std::string& name);

/// The mixer that `table` describes: its key `mixer`, and that mixer's own. Errors name the table.
std::shared_ptr<Mixer> make_mixer(config::Table& table, const BlockDefaults& defaults);

}  // namespace hopmix::nn

// What a run reads besides its config: texts and the files of patterns. A run knows them by length
// and hash, so that no other content can pass for what it was trained on.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "hopmix/base/content_hash.h"
#include "hopmix/config/config.h"

namespace hopmix::train {

/// A file or folder: the name that the config gives, and what it holds.
struct Input {
  std::string name;
  Digest digest;
};

/// By the key that names it, such as "task.path".
using Inputs = std::map<std::string, Input>;

/// The files of the patterns in a `[model]` table.
Inputs pattern_inputs(const toml::table& model);

/// Records the inputs in a new run's inputs.json, which a run without inputs does not have. Throws
/// Error if the run has recorded others.
void keep_inputs(const std::filesystem::path& run, const Inputs& inputs);

/// Throws Error if the run has recorded other contents under the same key and name. An input of
/// another name, as from --set, is not compared.
void check_inputs(const std::filesystem::path& run, const Inputs& inputs);

}  // namespace hopmix::train

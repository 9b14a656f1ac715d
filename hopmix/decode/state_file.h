// Where a text stands as a file, so that another process goes on with it.
#pragma once

#include <filesystem>
#include <string>

#include "hopmix/decode/generate.h"

namespace hopmix::decode {

/// What a state belongs to, in 16 hexadecimal digits: the config that a model was built from, as
/// text, and its weights to the bit.
std::string fingerprint(const nn::LanguageModel& model, const std::string& config);

/// Writes a safetensors file, whole or not at all: the tensors of block b under "b.", and as
/// metadata the model's fingerprint, the position and the unread tokens.
void save_session(const std::filesystem::path& path, const Session& session,
                  const std::string& fingerprint);

/// Throws Error naming the file where it is no such file, is of another model, or does not fit.
Session load_session(const std::filesystem::path& path, const nn::LanguageModel& model,
                     const std::string& fingerprint);

}  // namespace hopmix::decode

// Saves and loads a session, so that another process can continue the text.
#pragma once

#include <filesystem>
#include <string>

#include "hopmix/decode/generate.h"

namespace hopmix::decode {

/// Identifies the model that a state belongs to, in 16 hexadecimal digits: a hash of the text of
/// its config and of the exact bits of its weights.
std::string fingerprint(const nn::LanguageModel& model, const std::string& config);

/// Writes a safetensors file, atomically: the tensors of block b under "b.", and as metadata the
/// model's fingerprint, the position and the unread tokens.
void save_session(const std::filesystem::path& path, const Session& session,
                  const std::string& fingerprint);

/// Throws Error, naming the file, if it is not a state file, belongs to a different model, or is
/// inconsistent.
Session load_session(const std::filesystem::path& path, const nn::LanguageModel& model,
                     const std::string& fingerprint);

}  // namespace hopmix::decode

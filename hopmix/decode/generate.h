// Text generation.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "hopmix/decode/batch.h"

namespace hopmix::decode {

/// Continues `prompt`. Passes each new piece of text, always whole characters, to `show` as soon as
/// it is certain. Throws Error if the prompt is empty or not UTF-8, or if prompt and tokens exceed
/// what the model supports.
Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show);

/// The same, continuing `session`, which then stands at the end of the new text. The prompt may be
/// empty if the session has unread tokens.
Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show, Session& session);

}  // namespace hopmix::decode

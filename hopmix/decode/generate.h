// Text that a model goes on with.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "hopmix/decode/batch.h"

namespace hopmix::decode {

/// Goes on with `prompt`, and hands each new piece of the text, whole characters, to `show` as soon
/// as it is certain. Throws Error for a prompt that is empty or not UTF-8, and where prompt and
/// tokens are more than the model can have.
Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show);

/// The same behind the text of `session`, which then ends where this one does. The prompt may be
/// empty if there are unread tokens.
Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show, Session& session);

}  // namespace hopmix::decode

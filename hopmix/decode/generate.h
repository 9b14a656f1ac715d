// Text that a model goes on with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hopmix/decode/sampling.h"
#include "hopmix/nn/model.h"
#include "hopmix/text/tokenizer.h"

namespace hopmix::decode {

/// Takes `tokens` (int64 [B,T], T >= 1) in -> the logits of what follows the last, [B,vocabulary].
torch::Tensor prefill(nn::LanguageModel& model, const torch::Tensor& tokens, nn::ModelState& state);

struct GenerateConfig {
  int64_t tokens = 200;  // at most; from 1
  SamplingConfig sampling = {};
  uint64_t seed = 0;
  std::vector<std::string> stops = {};  // the text ends before the first of these
};

struct Generation {
  std::string text;                        // UTF-8, without the prompt
  int64_t prompt_tokens = 0, tokens = 0;   // unread ones of the session are of the prompt
  bool stopped = false;                    // by a stop string
  int64_t state_bytes = 0;                 // that the model holds at the end
  double prompt_seconds = 0, seconds = 0;  // for the prompt, and for what follows
};

/// Where a text stands. A copy is a fork (nn/mixer.h).
struct Session {
  nn::ModelState state;
  std::vector<int64_t> unread = {};  // drawn, and not taken in yet
};

/// Goes on with `prompt`, and hands each new piece of the text, whole characters, to `show` as soon
/// as it is certain. Throws Error for a prompt that is empty or not UTF-8, and where prompt and
/// tokens do not fit into a learned position table.
Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show);

/// The same behind the text of `session`, which then ends where this one does. The prompt may be
/// empty if there are unread tokens.
Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show, Session& session);

}  // namespace hopmix::decode

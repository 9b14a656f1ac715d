// Prompts of a file that go on together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hopmix/decode/batch.h"

namespace hopmix::cli {

/// The lines of a file, or of stdin if it is "-". Throws Error, naming file and line, where one is
/// empty or not UTF-8, and where there is none.
std::vector<std::string> read_prompts(const std::string& file);

/// What all of them took.
struct PromptsTotal {
  int64_t prompt_tokens = 0, tokens = 0;
  double prompt_seconds = 0, seconds = 0;  // for the prompts, and for what follows
  std::vector<size_t> failed = {};         // the prompts, from 0, whose text ended in an error
};

/// Goes on with each of `prompts` behind `session`, by `config` with the seed of prompt i raised by
/// i: `at_most` at once, others as these end. Hands them to `show` in the order of the prompts.
PromptsTotal go_on(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                   const std::vector<std::string>& prompts, const decode::GenerateConfig& config,
                   const decode::Session& session, int64_t at_most,
                   const std::function<void(size_t, const decode::Batch::Left&)>& show);

}  // namespace hopmix::cli

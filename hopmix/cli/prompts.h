// Batched generation from a file of prompts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hopmix/decode/batch.h"

namespace hopmix::cli {

/// The lines of a file, or of stdin if it is "-". Throws Error, naming the file and line, if a line
/// is empty or not UTF-8, or if there are no lines.
std::vector<std::string> read_prompts(const std::string& file);

/// Totals over all prompts.
struct PromptsTotal {
  int64_t prompt_tokens = 0, tokens = 0;
  double prompt_seconds = 0, seconds = 0;  // for the prompts; for the generated text
  std::vector<size_t> failed = {};         // indices, from 0, of the prompts that failed
};

/// Continues `session` with each of `prompts`, in batches of up to `at_most`; the next prompt joins
/// when a text ends. Prompt i uses `config` with its seed raised by i. Calls `show` with the
/// results in the order of the prompts.
PromptsTotal go_on(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                   const std::vector<std::string>& prompts, const decode::GenerateConfig& config,
                   const decode::Session& session, int64_t at_most,
                   const std::function<void(size_t, const decode::Batch::Left&)>& show);

}  // namespace hopmix::cli

#include "hopmix/cli/prompts.h"

#include <chrono>
#include <map>
#include <optional>

#include "hopmix/base/files.h"
#include "hopmix/base/utf8.h"

namespace hopmix::cli {

std::vector<std::string> read_prompts(const std::string& file) {
  const bool from_stdin = file == "-";
  std::string text = from_stdin ? read_stdin() : read_file(file);
  const std::string name = from_stdin ? "stdin" : "'" + file + "'";
  if (text.empty()) throw Error("--prompts: " + name + " has no lines");
  if (!text.ends_with('\n')) text += '\n';
  std::vector<std::string> prompts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    std::string& line = prompts.emplace_back(text.substr(begin, end - begin));
    if (line.ends_with('\r')) line.pop_back();
    const auto bad = [&](const std::string& what) {
      return Error("--prompts: line " + std::to_string(prompts.size()) + " of " + name + ' ' +
                   what);
    };
    if (line.empty()) throw bad("is empty: each line must hold a prompt");
    if (const auto byte = first_bad_utf8(line)) {
      throw bad("must be UTF-8, but byte " + std::to_string(*byte) + " is invalid");
    }
    begin = end + 1;
  }
  return prompts;
}

PromptsTotal go_on(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                   const std::vector<std::string>& prompts, const decode::GenerateConfig& config,
                   const decode::Session& session, int64_t at_most,
                   const std::function<void(size_t, const decode::Batch::Left&)>& show) {
  using Left = decode::Batch::Left;
  const auto start = std::chrono::steady_clock::now();
  decode::Batch batch(model, tokenizer);
  std::map<int64_t, size_t> prompt_of;  // of a sequence
  std::vector<std::optional<Left>> ended(prompts.size());
  PromptsTotal total;
  size_t joined = 0, shown = 0;
  while (shown < prompts.size()) {
    for (; joined < prompts.size() && batch.size() < at_most; ++joined) {
      decode::GenerateConfig own = config;
      own.seed += joined;
      try {
        prompt_of[batch.join(prompts[joined], own, session)] = joined;
      } catch (const Error& error) {
        ended[joined] = Left{.made = {}, .session = {}, .error = error.what()};
      }
    }
    for (decode::Batch::Piece& piece : batch.step()) {
      if (!piece.left) continue;
      piece.left->session = {};  // free its state; nothing continues it
      ended[prompt_of.at(piece.id)] = std::move(piece.left);
    }
    for (; shown < prompts.size() && ended[shown]; ended[shown++].reset()) {
      const Left& left = *ended[shown];
      total.prompt_tokens += left.made.prompt_tokens;
      total.prompt_seconds += left.made.prompt_seconds;
      total.tokens += left.made.tokens;
      if (!left.error.empty()) total.failed.push_back(shown);
      show(shown, left);
    }
  }
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
  total.seconds = all.count() - total.prompt_seconds;
  return total;
}

}  // namespace hopmix::cli

#include "hopmix/text/tokenizer_training.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "hopmix/base/error.h"
#include "hopmix/base/mapped_file.h"

namespace hopmix::text {
namespace {

constexpr int64_t kLeast = 257, kMost = std::numeric_limits<int32_t>::max();

// Longer lines are split, because SentencePiece would skip them.
constexpr size_t kLongestLine = 4096;

// What ends a line for the trainer. SentencePiece would skip a line with U+2585, take U+2581 for a
// space, and abort on a text of tabs.
const std::vector<std::string_view>& line_ends() {
  static const std::vector<std::string_view> ends = {"\n", "\t", std::string_view("\0", 1),
                                                     "\u2581", "\u2585"};
  return ends;
}

// The first line of `text`: its length, and that of what ends it.
std::pair<size_t, size_t> first_line(std::string_view text) {
  std::pair<size_t, size_t> line = {std::min(text.size(), kLongestLine), 0};
  for (const std::string_view end : line_ends()) {
    const size_t found = text.substr(0, line.first + end.size()).find(end);
    if (found <= line.first) line = {found, end.size()};
  }
  if (line.second > 0 || line.first == text.size()) return line;
  const size_t longest = line.first;
  while (line.first > 0 && (static_cast<unsigned char>(text[line.first]) & 0xc0) == 0x80)
    --line.first;
  return line.first > 0 ? line : std::pair<size_t, size_t>{longest, 0};
}

// The lines of every document in turn, without line ends.
class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<Document>& documents) : documents_(documents) { Next(); }

  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    do {
      while (rest_.empty()) {
        if (next_ == documents_.size()) {
          done_ = true;
          return;
        }
        const Document& document = documents_[next_++];
        file_ = std::make_unique<MappedFile>(document.file);
        rest_ = file_->bytes().substr(document.begin, document.end - document.begin);
      }
      const auto [length, end] = first_line(rest_);
      line_ = rest_.substr(0, length);
      rest_.remove_prefix(length + end);
    } while (line_.empty());
  }

 private:
  const std::vector<Document>& documents_;
  size_t next_ = 0;
  std::unique_ptr<MappedFile> file_;
  std::string_view rest_;
  std::string line_;
  bool done_ = false;
};

// The number that follows `words` in `message`, if they are there.
std::optional<std::string> number_after(std::string_view message, std::string_view words) {
  const size_t found = message.find(words);
  if (found == std::string_view::npos) return std::nullopt;
  const std::string_view rest = message.substr(found + words.size());
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0) return std::nullopt;
  return std::string(rest.substr(0, digits));
}

// What SentencePiece says, in our words: "FILE(LINE) [CONDITION] REASON".
std::string reason_of(std::string_view message, int64_t vocabulary) {
  const std::string value = std::to_string(vocabulary);
  if (const auto most = number_after(message, "Please set it to a value <= ")) {
    return "must be at most " + *most + ": the text has no more pieces";
  }
  if (const auto least = number_after(message, "required_chars. " + value + " vs ")) {
    return "must be at least " + *least + ", one token for each character of the text";
  }
  const size_t end = message.rfind("] ");
  const std::string_view reason = message.substr(end == std::string_view::npos ? 0 : end + 2);
  return "SentencePiece fails: " + std::string(reason.empty() ? message : reason);
}

}  // namespace

std::string train_tokenizer(const std::vector<Document>& documents,
                            const TokenizerTraining& config) {
  const int64_t least = kLeast + (config.end_of_document ? 1 : 0);
  if (config.vocabulary <= least) {
    throw Error("vocabulary = " + std::to_string(config.vocabulary) + ": must be above " +
                std::to_string(least) + ", the bytes and the unknown token" +
                (config.end_of_document ? " and the end of a document" : ""));
  }
  if (config.vocabulary > kMost) {
    throw Error("vocabulary = " + std::to_string(config.vocabulary) + ": must be at most " +
                std::to_string(kMost));
  }
  Lines lines(documents);
  if (lines.done()) throw Error("the text must have characters besides tabs and line ends");
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {{"model_type", config.type},
       {"vocab_size", std::to_string(config.vocabulary)},
       {"normalization_rule_name", "identity"},
       {"remove_extra_whitespaces", "false"},
       {"add_dummy_prefix", "false"},
       {"byte_fallback", "true"},
       {"character_coverage", "0.9999"},
       {"bos_id", "-1"},
       {"eos_id", config.end_of_document ? "1" : "-1"},
       {"max_sentence_length", std::to_string(2 * kLongestLine)},
       {"minloglevel", "2"}},
      &lines, &model);
  if (!status.ok()) {
    throw Error("vocabulary = " + std::to_string(config.vocabulary) + ": " +
                reason_of(status.message(), config.vocabulary));
  }
  return model;
}

}  // namespace hopmix::text

#include "hopmix/text/tokenizer_training.h"

#include <sentencepiece_trainer.h>

#include <algorithm>

#include "hopmix/base/error.h"
#include "hopmix/base/mapped_file.h"

namespace hopmix::text {
namespace {

constexpr int64_t kLeast = 257;

// Longer lines are split, because SentencePiece would skip them.
constexpr size_t kLongestLine = 4096;

// The lines of every document in turn, without line ends.
class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<Document>& documents) : documents_(documents) { Next(); }

  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    while (rest_.empty()) {
      if (next_ == documents_.size()) {
        done_ = true;
        return;
      }
      const Document& document = documents_[next_++];
      file_ = std::make_unique<MappedFile>(document.file);
      rest_ = file_->bytes().substr(document.begin, document.end - document.begin);
    }
    const std::string_view line = rest_.substr(0, std::min(rest_.find('\n'), kLongestLine));
    line_ = line;
    rest_.remove_prefix(std::min(line.size() + (line.size() < kLongestLine), rest_.size()));
  }

 private:
  const std::vector<Document>& documents_;
  size_t next_ = 0;
  std::unique_ptr<MappedFile> file_;
  std::string_view rest_;
  std::string line_;
  bool done_ = false;
};

}  // namespace

std::string train_tokenizer(const std::vector<Document>& documents,
                            const TokenizerTraining& config) {
  const int64_t least = kLeast + (config.end_of_document ? 1 : 0);
  if (config.vocabulary <= least) {
    throw Error("vocabulary = " + std::to_string(config.vocabulary) + ": must be above " +
                std::to_string(least) + ", the bytes and the unknown token" +
                (config.end_of_document ? " and the end of a document" : ""));
  }
  Lines lines(documents);
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
    const std::string_view message = status.message();  // "FILE(LINE) [CONDITION] REASON"
    const size_t end = message.rfind("] ");
    throw Error("vocabulary = " + std::to_string(config.vocabulary) + ": " +
                std::string(message.substr(end == std::string_view::npos ? 0 : end + 2)));
  }
  return model;
}

}  // namespace hopmix::text

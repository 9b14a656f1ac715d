#include "hopmix/tasks/text.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <sstream>

#include "hopmix/base/error.h"
#include "hopmix/tasks/rows.h"
#include "hopmix/text/documents.h"
#include "hopmix/text/tokenizer.h"

namespace hopmix::tasks {
namespace {

// Documents of two tokens or more: there is something to ask.
class Corpus {
 public:
  Corpus(const std::vector<text::Document>& documents, const text::Tokenizer& tokenizer,
         const std::filesystem::path& cache) {
    for (const text::Document& document : documents) {
      text::Tokens tokens = text::open_tokens(document, tokenizer, cache);
      tokens_ += tokens.size();
      if (tokens.size() < 2) continue;
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + tokens.size());
      documents_.push_back(std::move(tokens));
    }
  }

  bool empty() const { return documents_.empty(); }
  int64_t tokens() const { return tokens_; }

  void fill(Rng& rng, const Row& row) const {
    const int64_t drawn = rng.below(ends_.back());
    const auto at = std::upper_bound(ends_.begin(), ends_.end(), drawn) - ends_.begin();
    const text::Tokens& document = documents_[static_cast<size_t>(at)];
    const int64_t length = static_cast<int64_t>(row.tokens.size());
    const int64_t start = rng.below(std::max<int64_t>(1, document.size() - length));
    const size_t asked = static_cast<size_t>(std::min(length, document.size() - start - 1));
    document.copy(start, row.tokens.first(asked));
    document.copy(start + 1, row.targets.first(asked));
    std::fill(row.tokens.begin() + static_cast<std::ptrdiff_t>(asked), row.tokens.end(), 0);
  }

 private:
  std::vector<text::Tokens> documents_;
  std::vector<int64_t> ends_;  // of each document, the tokens up to its end
  int64_t tokens_ = 0;
};

std::function<Batch(int64_t, uint64_t)> windows(int64_t length,
                                                std::shared_ptr<const Corpus> corpus) {
  return by_rows(length, [corpus](Rng& rng, const Row& row) { corpus->fill(rng, row); });
}

void check_fraction(const std::string& name, double fraction) {
  if (fraction > 0 && fraction < 1) return;
  std::ostringstream value;
  value << fraction;
  throw Error(name + " = " + value.str() + ": must be above 0 and below 1");
}

}  // namespace

Task text_task(const TextConfig& config, const std::string& where) {
  check_range(where + "length", config.length, 1, kMaxLength);
  check_fraction(where + "valid_fraction", config.valid_fraction);
  if (config.path.empty()) throw Error(where + "path = '': must be a file or a folder of text");
  const text::Tokenizer tokenizer = text::Tokenizer::load(config.tokenizer, where + "tokenizer");
  const std::filesystem::path cache =
      config.cache.empty() ? text::default_cache() : std::filesystem::path(config.cache);

  std::vector<text::Document> documents = text::list_documents(config.path, where + "path");
  std::vector<text::Document> held_out;
  if (config.valid.empty()) {
    std::tie(documents, held_out) = text::hold_out(documents, config.valid_fraction);
  } else {
    held_out = text::list_documents(config.valid, where + "valid");
  }
  const auto corpus = std::make_shared<const Corpus>(documents, tokenizer, cache);
  const auto held_out_corpus = std::make_shared<const Corpus>(held_out, tokenizer, cache);
  if (corpus->empty() || held_out_corpus->empty()) {
    throw Error(where + "path = '" + config.path +
                "': must have two tokens in a row to train on, and as many held out");
  }

  Task task{.name = "text",
            .vocabulary = tokenizer.vocabulary(),
            .length = config.length,
            .slice_name = "",
            .chance = 100.0 / static_cast<double>(tokenizer.vocabulary()),
            .sample = windows(config.length, corpus)};
  task.sample_held_out = windows(config.length, held_out_corpus);
  task.bytes_per_token = static_cast<double>(text::total_size(held_out)) /
                         static_cast<double>(held_out_corpus->tokens());
  if (!tokenizer.is_bytes()) task.files["tokenizer.model"] = tokenizer.model();
  return task;
}

TaskEntry text_entry() {
  return {.info = {.name = "text",
                   .description = "the next byte or subword of any text",
                   .keys = {{"path", "a file, or a folder whose files are documents"},
                            {"valid", "the held-out text; empty for a part of path"},
                            {"valid_fraction", "that part, of its bytes"},
                            {"tokenizer", "bytes, or the path of a SentencePiece model"},
                            {"length", "tokens of a window"},
                            {"cache", "folder of subword tokens; empty for ~/.cache/hopmix"}}},
          .make = [](config::Table& table) {
            TextConfig config;
            config.path = table.require("path");
            config.valid = table.get("valid", config.valid);
            config.valid_fraction = table.get("valid_fraction", config.valid_fraction);
            config.tokenizer = table.get("tokenizer", config.tokenizer);
            config.length = table.get("length", config.length);
            config.cache = table.get("cache", config.cache);
            return text_task(config, table.name(""));
          }};
}

}  // namespace hopmix::tasks

#include "hopmix/tasks/text.h"

#include <ATen/ops/empty.h>

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

constexpr const char* kSeparated = "separated";

// The documents of a text, without those in which nothing is asked.
class Corpus {
 public:
  /// `end_target` is the target of a document's last token.
  Corpus(const std::vector<text::Document>& files, const text::Tokenizer& tokenizer,
         const std::filesystem::path& cache, std::string_view separator, int64_t end_target)
      : end_target_(end_target) {
    for (const text::Document& file : files) {
      const text::Tokens& tokens =
          files_.emplace_back(text::open_tokens(file, tokenizer, cache, separator));
      tokens_ += tokens.size();
      parts_ += static_cast<int64_t>(tokens.ends().size());
      int64_t begin = 0;
      for (const int64_t end : tokens.ends()) {
        add(begin, end, tokenizer);
        begin = end;
      }
    }
  }

  bool empty() const { return documents_.empty(); }
  int64_t tokens() const { return tokens_; }
  int64_t parts() const { return parts_; }

  // The number of tokens asked over one pass through all documents, and the bytes that are never
  // asked: those of each document's first token.
  int64_t asked() const { return asked_; }
  int64_t unasked_bytes() const { return unasked_bytes_; }

  // A window of one document, at a random position.
  void fill_window(Rng& rng, const Row& row) const {
    const auto [document, place] = draw(rng);
    const text::Tokens& tokens = files_[documents_[document].file];
    const int64_t begin = documents_[document].begin, size = this->size(document);
    const int64_t length = static_cast<int64_t>(row.tokens.size());
    const int64_t start = rng.below(std::max<int64_t>(1, size - length));
    const size_t asked = static_cast<size_t>(std::min(length, size - start - 1));
    tokens.copy(begin + start, row.tokens.first(asked));
    tokens.copy(begin + start + 1, row.targets.first(asked));
    std::fill(row.tokens.begin() + static_cast<std::ptrdiff_t>(asked), row.tokens.end(), 0);
  }

  // Consecutive documents, starting at a random token.
  void fill_packed(Rng& rng, const Row& row) const {
    auto [document, place] = draw(rng);
    const size_t length = row.tokens.size();
    for (size_t filled = 0; filled < length;) {
      const text::Tokens& tokens = files_[documents_[document].file];
      const int64_t begin = documents_[document].begin + place;
      const auto left = static_cast<size_t>(size(document) - place);
      const size_t count = std::min(left, length - filled), asked = std::min(left - 1, count);
      tokens.copy(begin, row.tokens.subspan(filled, count));
      tokens.copy(begin + 1, row.targets.subspan(filled, asked));
      filled += count;
      if (asked < count) row.targets[filled - 1] = end_target_;
      document = (document + 1) % documents_.size();
      place = 0;
    }
  }

 private:
  struct Part {
    size_t file;
    int64_t begin;
  };

  void add(int64_t begin, int64_t end, const text::Tokenizer& tokenizer) {
    if (begin == end) return;
    int64_t first = 0;
    files_.back().copy(begin, {&first, 1});
    unasked_bytes_ += static_cast<int64_t>(tokenizer.bytes(first).size());
    const int64_t size = end - begin, asked = end_target_ == kNoTarget ? size - 1 : size;
    if (asked == 0) return;
    asked_ += asked;
    documents_.push_back({files_.size() - 1, begin});
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + size);
  }

  int64_t size(size_t document) const {
    return ends_[document] - (document > 0 ? ends_[document - 1] : 0);
  }

  // Draws one of all tokens: returns its document and its position there.
  std::pair<size_t, int64_t> draw(Rng& rng) const {
    const int64_t drawn = rng.below(ends_.back());
    const auto document =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), drawn) - ends_.begin());
    return {document, drawn - (ends_[document] - size(document))};
  }

  std::vector<text::Tokens> files_;
  std::vector<Part> documents_;
  std::vector<int64_t> ends_;  // tokens up to the end of each document
  int64_t end_target_, tokens_ = 0, parts_ = 0, asked_ = 0, unasked_bytes_ = 0;
};

using Sample = std::function<Batch(int64_t, uint64_t)>;

Sample windows(int64_t length, std::shared_ptr<const Corpus> corpus) {
  return by_rows(length, [corpus](Rng& rng, const Row& row) { corpus->fill_window(rng, row); });
}

// Packs the rows of a batch into one; the target is `end_target` only where a document ends.
Batch pack(const Batch& rows, int64_t end_target) {
  const int64_t length = rows.tokens.size(1), total = rows.tokens.numel();
  const int64_t* target = rows.targets.const_data_ptr<int64_t>();
  std::vector<int64_t> bounds = {0};
  for (int64_t t = 1; t <= total; ++t) {
    if (t % length == 0 || target[t - 1] == end_target) bounds.push_back(t);
  }
  const auto one_row = [total](const at::Tensor& x) { return x.view({1, total}); };
  at::Tensor cu_seqlens = at::empty({static_cast<int64_t>(bounds.size())}, at::kLong);
  std::copy(bounds.begin(), bounds.end(), cu_seqlens.mutable_data_ptr<int64_t>());
  return {one_row(rows.tokens), one_row(rows.targets), one_row(rows.slices), cu_seqlens};
}

Sample packed(int64_t length, std::shared_ptr<const Corpus> corpus, int64_t end_target) {
  return [end_target, rows = by_rows(length, [corpus](Rng& rng, const Row& row) {
                        corpus->fill_packed(rng, row);
                      })](int64_t batch, uint64_t seed) {
    return pack(rows(batch, seed), end_target);
  };
}

void check_fraction(const std::string& name, double fraction) {
  if (fraction > 0 && fraction < 1) return;
  std::ostringstream value;
  value << fraction;
  throw Error(name + " = " + value.str() + ": must be above 0 and below 1");
}

void check_documents(const TextConfig& config, const std::string& where) {
  check_choice(where + "documents", config.documents, {"none", "files", kSeparated});
  const bool separated = config.documents == kSeparated;
  if (separated && config.separator.empty()) {
    throw Error(where +
                "separator = \"\": must be the string that ends a document, such as \"\\n\\n\"");
  }
  if (!separated && !config.separator.empty()) {
    throw Error(where + "separator = " + config::in_one_line(config.separator) +
                ": applies only to documents = 'separated', not to '" + config.documents + "'");
  }
}

}  // namespace

Task text_task(const TextConfig& config, const std::string& where) {
  check_documents(config, where);
  const bool packs = config.documents != "none";
  // Two tokens are enough to ask for something.
  check_range(where + "length", config.length, packs ? 2 : 1, kMaxLength);
  check_fraction(where + "valid_fraction", config.valid_fraction);
  if (config.path.empty()) throw Error(where + "path = '': must be a file or a folder of text");
  const text::Tokenizer tokenizer = text::Tokenizer::load(config.tokenizer, where + "tokenizer");
  const std::filesystem::path cache =
      config.cache.empty() ? text::default_cache() : std::filesystem::path(config.cache);

  const std::string& separator = config.separator;
  std::vector<text::Document> files = text::list_documents(config.path, where + "path");
  std::map<std::string, Digest> inputs = {{"path", text::digest(files, config.path)}};
  std::vector<text::Document> held_out;
  if (config.valid.empty()) {
    std::tie(files, held_out) =
        text::hold_out(files, config.valid_fraction, separator.empty() ? "\n" : separator);
  } else {
    held_out = text::list_documents(config.valid, where + "valid");
    inputs["valid"] = text::digest(held_out, config.valid);
  }
  const int64_t end = packs ? tokenizer.end_of_document().value_or(kNoTarget) : kNoTarget;
  const auto open = [&](const std::vector<text::Document>& of) {
    return std::make_shared<const Corpus>(of, tokenizer, cache, separator, end);
  };
  const auto corpus = open(files), held_out_corpus = open(held_out);
  if (!config.valid.empty() && held_out_corpus->empty()) {
    throw Error(where + "valid = '" + config.valid + "': must have two consecutive tokens");
  }
  if (corpus->empty() || held_out_corpus->empty()) {
    throw Error(where + "path = '" + config.path +
                "': must have two consecutive tokens to train on, and two held out");
  }
  if (!separator.empty() && corpus->parts() == static_cast<int64_t>(files.size())) {
    throw Error(where + "separator = " + config::in_one_line(separator) +
                ": must separate documents, but does not occur in the training text");
  }

  const auto sample = [&](const std::shared_ptr<const Corpus>& of) {
    return packs ? packed(config.length, of, end) : windows(config.length, of);
  };
  Task task{.name = "text",
            .vocabulary = tokenizer.vocabulary(),
            .length = config.length,
            .slice_name = "",
            .chance = 100.0 / static_cast<double>(tokenizer.vocabulary()),
            .sample = sample(corpus)};
  task.sample_held_out = sample(held_out_corpus);
  const int64_t bytes = static_cast<int64_t>(text::total_size(held_out));
  task.bytes_per_token =
      packs ? static_cast<double>(bytes - held_out_corpus->unasked_bytes()) /
                  static_cast<double>(held_out_corpus->asked())
            : static_cast<double>(bytes) / static_cast<double>(held_out_corpus->tokens());
  task.inputs = std::move(inputs);
  if (!tokenizer.is_bytes()) task.files["tokenizer.model"] = tokenizer.model();
  return task;
}

TaskEntry text_entry() {
  return {.info = {.name = "text",
                   .description = "the next byte or subword of any text",
                   .keys = {{"path", "a file, or a folder whose files are documents"},
                            {"valid", "held-out text; empty holds out a part of path"},
                            {"valid_fraction", "size of that part, in bytes of path"},
                            {"tokenizer", "bytes, or the path of a SentencePiece model"},
                            {"length", "tokens per row"},
                            {"cache", "folder for subword tokens; empty for ~/.cache/hopmix"},
                            {"documents", "documents to pack into rows: none, files, separated"},
                            {"separator", "string that ends a document, if separated"}}},
          .make = [](config::Table& table) {
            TextConfig config;
            config.path = table.require("path");
            config.valid = table.get("valid", config.valid);
            config.valid_fraction = table.get("valid_fraction", config.valid_fraction);
            config.tokenizer = table.get("tokenizer", config.tokenizer);
            config.length = table.get("length", config.length);
            config.cache = table.get("cache", config.cache);
            config.documents = table.get("documents", config.documents);
            config.separator = table.get("separator", config.separator);
            return text_task(config, table.name(""));
          }};
}

}  // namespace hopmix::tasks

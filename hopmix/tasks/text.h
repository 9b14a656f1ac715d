// Text: the next token, everywhere.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct TextConfig {
  std::string path = "";            // a file, or a folder whose files are documents
  std::string valid = "";           // the held-out text; empty: a part of `path`
  double valid_fraction = 0.1;      // that part, of its bytes
  std::string tokenizer = "bytes";  // or the path of a SentencePiece model
  int64_t length = 256;             // from 1
  std::string cache = "";           // folder of subword tokens; empty: text::default_cache()
  std::string documents = "none";   // packed: "files", or the parts that `separator` ends
  std::string separator = "";       // of documents = "separated"
};

/// A row is a window of one document at a random place: a document with a probability proportional
/// to its tokens, then every full window of it alike. Each token asks for the next one. A document
/// shorter than a window is followed by tokens 0, where nothing is asked.
///
/// With `documents` they are packed instead: a row is `length` tokens of all documents, one behind
/// the other and the first again behind the last, from any token on, all alike. Rows follow one
/// another in a batch of one, and cu_seqlens has the ends of rows and of documents. The last token
/// of a document asks for the tokenizer's end of a document, or for nothing if it has none.
///
/// Chance is a uniform guess. Throws Error for what cannot be read or is too short; `where` goes
/// before the key in its message.
Task text_task(const TextConfig& config, const std::string& where = "");

TaskEntry text_entry();

}  // namespace hopmix::tasks

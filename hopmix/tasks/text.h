// Text: predict the next token at every position.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct TextConfig {
  std::string path = "";            // a file, or a folder whose files are documents
  std::string valid = "";           // held-out text; empty: a part of `path`
  double valid_fraction = 0.1;      // size of that part, in bytes of `path`
  std::string tokenizer = "bytes";  // or the path of a SentencePiece model
  int64_t length = 256;             // at least 1
  std::string cache = "";           // folder for subword tokens; empty: text::default_cache()
  std::string documents = "none";   // to pack: "files", or "separated" by `separator`
  std::string separator = "";       // ends a document if documents = "separated"
};

/// A row is a window of one document at a random position: a document drawn with probability
/// proportional to its tokens, then one of its full windows, uniformly. Each token's target is the
/// next token. A document shorter than a window is padded with token 0, where nothing is asked.
///
/// With `documents`, documents are packed instead: a row is `length` consecutive tokens of the
/// stream of all documents, which wraps around, starting at a uniformly drawn token. The rows of a
/// batch are concatenated into one, and cu_seqlens marks the ends of rows and documents. The target
/// of a document's last token is the tokenizer's end of document, or nothing if it has none.
///
/// Chance is that of a uniform guess. Throws Error if a file cannot be read or is too short;
/// `where` precedes the key in the message.
Task text_task(const TextConfig& config, const std::string& where = "");

TaskEntry text_entry();

}  // namespace hopmix::tasks

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
};

/// A row is a window of one document at a random place: a document with a probability proportional
/// to its tokens, then every full window of it alike. Each token asks for the next one. A document
/// shorter than a window is followed by tokens 0, where nothing is asked.
///
/// Chance is a uniform guess. Throws Error for what cannot be read or is too short; `where` goes
/// before the key in its message.
Task text_task(const TextConfig& config, const std::string& where = "");

TaskEntry text_entry();

}  // namespace hopmix::tasks

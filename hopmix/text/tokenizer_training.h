// Trains a SentencePiece model on text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hopmix/text/documents.h"

namespace hopmix::text {

struct TokenizerTraining {
  int64_t vocabulary = 2000;     // 256 bytes and the unknown token included
  std::string type = "unigram";  // or "bpe"
  bool end_of_document = false;  // adds a token, which no text contains
};

/// Returns the model in its file format. The model is lossless: it normalizes nothing, and spells
/// what no piece covers, including line ends, in bytes. The same text gives the same model. Throws
/// Error if the text has nothing to learn from, or cannot fill the vocabulary.
std::string train_tokenizer(const std::vector<Document>& documents,
                            const TokenizerTraining& config);

}  // namespace hopmix::text

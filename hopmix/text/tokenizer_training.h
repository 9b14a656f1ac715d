// Learns a SentencePiece model from text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hopmix/text/documents.h"

namespace hopmix::text {

struct TokenizerTraining {
  int64_t vocabulary = 2000;     // 256 bytes and the unknown token included
  std::string type = "unigram";  // or "bpe"
  bool end_of_document = false;  // one more token, which no text holds
};

/// The model as its file holds it. It loses nothing: no byte is normalized away, and what no piece
/// covers, line ends included, is spelled in bytes. The same text gives the same model. Throws
/// Error for a vocabulary that the text cannot fill.
std::string train_tokenizer(const std::vector<Document>& documents,
                            const TokenizerTraining& config);

}  // namespace hopmix::text

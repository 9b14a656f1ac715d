// Tokenizers: bytes, or a SentencePiece model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace hopmix::text {

/// Each token stands for a string of bytes, which need not be whole characters; decoding
/// concatenates them. Copies share the model.
class Tokenizer {
 public:
  /// One token per byte, vocabulary 256.
  Tokenizer();

  /// Loads `name`, which is "bytes" or the path of a SentencePiece model. Throws Error, naming
  /// `where`.
  static Tokenizer load(const std::string& name, const std::string& where = "tokenizer");

  /// From the bytes of a SentencePiece model. Throws Error, naming `where`.
  explicit Tokenizer(std::string model, const std::string& where = "tokenizer");

  bool is_bytes() const { return !processor_; }
  int64_t vocabulary() const { return static_cast<int64_t>(pieces_->size()); }

  /// Appends the tokens of `text`. A SentencePiece model encodes line by line, as it was trained.
  /// If the model spells in bytes what no piece covers and normalizes nothing, decoding gives back
  /// every byte: what SentencePiece itself would change is spelled in bytes too.
  void encode(std::string_view text, std::vector<int64_t>& tokens) const;
  std::vector<int64_t> encode(std::string_view text) const;

  /// The number of tokens; tokens are 0..vocabulary-1.
  std::string decode(std::span<const int64_t> tokens) const;

  /// The token that ends a document, which no text contains (SentencePiece's eos); bytes have none.
  std::optional<int64_t> end_of_document() const;

  /// The bytes `token` stands for: empty for a control token, U+FFFD for the unknown token.
  const std::string& bytes(int64_t token) const { return (*pieces_)[static_cast<size_t>(token)]; }

  /// The SentencePiece model in its file format; empty for bytes.
  const std::string& model() const { return *model_; }

 private:
  void encode_line(std::string_view line, std::vector<int64_t>& tokens) const;

  std::shared_ptr<const sentencepiece::SentencePieceProcessor> processor_;  // none for bytes
  std::shared_ptr<const std::vector<std::string>> pieces_;
  std::shared_ptr<const std::vector<int64_t>> spelling_;  // the token of each byte; none if lossy
  std::shared_ptr<const std::string> model_;
};

}  // namespace hopmix::text

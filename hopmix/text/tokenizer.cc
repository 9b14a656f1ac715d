#include "hopmix/text/tokenizer.h"

#include <sentencepiece_processor.h>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"

namespace hopmix::text {
namespace {

constexpr std::string_view kSpace = "\u2581";  // how SentencePiece writes a space
constexpr const char* kReplacement = "\uFFFD";

std::vector<std::string> all_bytes() {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
  return pieces;
}

std::string bytes_of(const sentencepiece::SentencePieceProcessor& processor, int token) {
  if (processor.IsUnknown(token)) return kReplacement;
  if (processor.IsControl(token) || processor.IsUnused(token)) return "";
  std::string piece = processor.IdToPiece(token);
  if (processor.IsByte(token)) {  // "<0x0A>"
    return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
  }
  for (size_t at = 0; (at = piece.find(kSpace, at)) != std::string::npos; ++at) {
    piece.replace(at, kSpace.size(), " ");
  }
  return piece;
}

}  // namespace

Tokenizer::Tokenizer()
    : pieces_(std::make_shared<const std::vector<std::string>>(all_bytes())),
      model_(std::make_shared<const std::string>()) {}

Tokenizer::Tokenizer(std::string model, const std::string& where) {
  const auto processor = std::make_shared<sentencepiece::SentencePieceProcessor>();
  if (model.empty() || !processor->LoadFromSerializedProto(model).ok()) {
    throw Error(where + ": is not a SentencePiece model");
  }
  std::vector<std::string> pieces;
  for (int token = 0; token < processor->GetPieceSize(); ++token) {
    pieces.push_back(bytes_of(*processor, token));
  }
  processor_ = processor;
  pieces_ = std::make_shared<const std::vector<std::string>>(std::move(pieces));
  model_ = std::make_shared<const std::string>(std::move(model));
}

Tokenizer Tokenizer::load(const std::string& name, const std::string& where) {
  if (name == "bytes") return Tokenizer();
  const std::string named = where + " = '" + name + "'";
  try {
    return Tokenizer(read_file(name), named);
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.starts_with(named)) throw;
    throw Error(named + ": must be bytes or the path of a SentencePiece model: " + message);
  }
}

void Tokenizer::encode(std::string_view text, std::vector<int64_t>& tokens) const {
  if (is_bytes()) {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return;
  }
  std::vector<int> ids;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const auto status = processor_->Encode(text.substr(begin, end - begin), &ids);
    if (!status.ok()) throw Error("cannot encode the text: " + status.ToString());
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    begin = end;
  }
}

std::vector<int64_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int64_t> tokens;
  encode(text, tokens);
  return tokens;
}

std::optional<int64_t> Tokenizer::end_of_document() const {
  if (is_bytes() || processor_->eos_id() < 0) return std::nullopt;
  return processor_->eos_id();
}

std::string Tokenizer::decode(std::span<const int64_t> tokens) const {
  std::string text;
  for (const int64_t token : tokens) text += bytes(token);
  return text;
}

}  // namespace hopmix::text

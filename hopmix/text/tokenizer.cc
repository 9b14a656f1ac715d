#include "hopmix/text/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"
#include "hopmix/base/utf8.h"

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

// How many bytes of `line` SentencePiece gives back: up to the first that are not UTF-8, or are its
// sign for a space.
size_t faithful_prefix(std::string_view line) {
  const size_t mark = std::min(line.find(kSpace), line.size());
  return first_bad_utf8(line.substr(0, mark)).value_or(mark);
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
  std::vector<int64_t> spelling(256, -1);
  for (int token = 0; token < processor->GetPieceSize(); ++token) {
    pieces.push_back(bytes_of(*processor, token));
    if (processor->IsByte(token)) spelling[static_cast<unsigned char>(pieces.back()[0])] = token;
  }
  processor_ = processor;
  pieces_ = std::make_shared<const std::vector<std::string>>(std::move(pieces));
  model_ = std::make_shared<const std::string>(std::move(model));
  // A model that puts a space in front of a text, joins spaces or normalizes is another matter: its
  // pieces of a line would not be those of the line.
  const std::string probe = "a  \uFB01 ";
  const bool every_byte = std::find(spelling.begin(), spelling.end(), -1) == spelling.end();
  if (every_byte && decode(encode(probe)) == probe) {
    spelling_ = std::make_shared<const std::vector<int64_t>>(std::move(spelling));
  }
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
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    encode_line(text.substr(begin, end - begin), tokens);
    begin = end;
  }
}

void Tokenizer::encode_line(std::string_view line, std::vector<int64_t>& tokens) const {
  std::vector<int> ids;
  while (!line.empty()) {
    const size_t plain = spelling_ ? faithful_prefix(line) : line.size();
    if (plain > 0) {
      const auto status = processor_->Encode(line.substr(0, plain), &ids);
      if (!status.ok()) throw Error("cannot encode the text: " + status.ToString());
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      line.remove_prefix(plain);
    }
    if (line.empty()) return;
    const size_t spelled = first_utf8_character(line).length;
    for (const char c : line.substr(0, spelled)) {
      tokens.push_back((*spelling_)[static_cast<unsigned char>(c)]);
    }
    line.remove_prefix(spelled);
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

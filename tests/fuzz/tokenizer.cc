// Tokenizers. With a first byte of 0 the rest is a SentencePiece model: an error or a tokenizer that encodes and decodes.
// Otherwise it is a text, and a tokenizer that hopmix trained gives back its bytes.
#include "hopmix/text/tokenizer.h"

#include "hopmix/text/tokenizer_training.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace hopmix;

const text::Tokenizer& trained() {
  static const text::Tokenizer tokenizer = [] {
    std::string words;
    for (int n = 0; n < 400; ++n) words += "the " + std::to_string(n * n) + "th word, \xc3\xa9t\xc3\xa9\n";
    const auto documents = text::list_documents(fuzz::file_of(words, ".txt"), "fuzz");
    return text::Tokenizer(text::train_tokenizer(documents, {.vocabulary = 320}), "fuzz");
  }();
  return tokenizer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  if (input.byte() == 0) {
    try {
      const text::Tokenizer tokenizer(std::string(input.rest()), "fuzz");
      const auto tokens = tokenizer.encode("some text\n\xff");
      for (const int64_t token : tokens) CHECK(token >= 0 && token < tokenizer.vocabulary());
      tokenizer.decode(tokens);
    } catch (const Error& error) {
      fuzz::check_message(error);
    }
  } else {
    const std::string text(input.rest());
    CHECK(trained().decode(trained().encode(text)) == text);
  }
  return 0;
}

#include "hopmix/text/tokenizer.h"

#include <algorithm>
#include <cstdio>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"
#include "hopmix/cli/commands.h"
#include "hopmix/text/tokenizer_training.h"

namespace hopmix::cli {
namespace {

struct TrainOptions {
  std::vector<std::string> inputs;
  std::string output;
  text::TokenizerTraining training;
};

void run_train(const TrainOptions& options) {
  std::vector<text::Document> documents;
  for (const std::string& input : options.inputs) {
    for (text::Document& document : text::list_documents(input, "--input")) {
      documents.push_back(std::move(document));
    }
  }
  const std::string model = text::train_tokenizer(documents, options.training);
  write_file(options.output, model);
  std::printf("%s: %lld tokens\n", options.output.c_str(),
              static_cast<long long>(text::Tokenizer(model).vocabulary()));
}

// The text given on the command line, else stdin.
struct Input {
  std::string model, text;
  CLI::Option* given = nullptr;

  std::string read() const { return given->count() > 0 ? text : read_stdin(); }
};

void run_encode(const Input& input) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(input.model, "model");
  std::string line;
  for (const int64_t token : tokenizer.encode(input.read())) {
    line += (line.empty() ? "" : " ") + std::to_string(token);
  }
  std::printf("%s\n", line.c_str());
}

void run_decode(const Input& input) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(input.model, "model");
  std::istringstream words(input.read());
  std::string text;
  for (std::string word; words >> word;) {
    const bool digits =
        std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
    const int64_t token = digits && word.size() < 10 ? std::stoll(word) : -1;
    if (token < 0 || token >= tokenizer.vocabulary()) {
      throw Error("token '" + word + "': must be from 0 to " +
                  std::to_string(tokenizer.vocabulary() - 1));
    }
    text += tokenizer.bytes(token);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void add_input(CLI::App& command, Input& input, const char* what) {
  command.add_option("model", input.model, "A SentencePiece model, or `bytes`")
      ->required()
      ->type_name("MODEL");
  input.given = command.add_option("input", input.text, what)->type_name("TEXT");
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "Train and apply subword tokenizers");
  tokenizer->require_subcommand(1);
  tokenizer->footer(
      "Examples:\n"
      "  hopmix tokenizer train --input data/shakespeare/train.txt --vocabulary 2000 --output "
      "x.model\n"
      "  hopmix tokenizer encode x.model 'To be, or not to be'\n"
      "  hopmix tokenizer encode x.model < data/shakespeare/valid.txt | wc -w");

  CLI::App* train = tokenizer->add_subcommand("train", "Train a SentencePiece model");
  const auto options = std::make_shared<TrainOptions>();
  train->add_option("--input", options->inputs, "Files or folders of text")
      ->required()
      ->type_name("PATH")
      ->take_all();
  train->add_option("--output", options->output, "File to write the model to")
      ->required()
      ->type_name("FILE");
  train
      ->add_option("--vocabulary", options->training.vocabulary,
                   "Tokens, including 256 bytes and the unknown token")
      ->capture_default_str();
  train->add_option("--type", options->training.type, "Training algorithm: unigram or bpe")
      ->check(CLI::IsMember({"unigram", "bpe"}))
      ->capture_default_str();
  train->add_flag("--end-of-document", options->training.end_of_document,
                  "Add an end-of-document token, which no text contains");
  train->callback([options] { run_train(*options); });

  CLI::App* encode = tokenizer->add_subcommand("encode", "Turn text into tokens");
  const auto encoded = std::make_shared<Input>();
  add_input(*encode, *encoded, "The text; stdin if omitted");
  encode->callback([encoded] { run_encode(*encoded); });

  CLI::App* decode = tokenizer->add_subcommand("decode", "Turn tokens into text");
  const auto decoded = std::make_shared<Input>();
  add_input(*decode, *decoded, "The tokens, as printed by encode; stdin if omitted");
  decode->callback([decoded] { run_decode(*decoded); });
}

}  // namespace hopmix::cli

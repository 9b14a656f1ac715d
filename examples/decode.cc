// Generates text with a model trained by `hopmix train`, token by token, in memory bounded by its
// pattern:
//   decode RUN_DIR PROMPT [TOKENS]
// Without arguments, runs a small untrained model and prints the size of its state as the text
// grows.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "hopmix/config/config.h"
#include "hopmix/decode/generate.h"
#include "hopmix/train/checkpoint.h"

namespace {

using namespace hopmix;

struct Run {
  text::Tokenizer tokenizer;
  std::shared_ptr<nn::LanguageModel> model;
};

// A run directory holds the resolved config, the weights, and the tokenizer if there is one.
Run load(const std::filesystem::path& directory) {
  toml::table document = config::parse_file(directory / "config.toml");
  config::Table root(document);
  config::Table task = root.table("task"), model = root.table("model");
  Run run;
  if (task.get("tokenizer", "bytes") != "bytes") {
    run.tokenizer = text::Tokenizer::load(directory / "tokenizer.model");
  }
  nn::TaskShape shape;
  shape.vocabulary = run.tokenizer.vocabulary();
  shape.length = task.get_at_least("length", 1, 1);
  run.model = nn::make_model(model, shape);
  train::load_weights(directory, *run.model);
  return run;
}

Run untrained() {
  toml::table document = config::parse(
      "width = 32\npositions = 'none'\nblocks = [{mixer = 'glr', pattern = 'cached(2^k)'}]",
      "example");
  config::Table table(document);
  nn::TaskShape shape;
  shape.vocabulary = 256;  // bytes
  shape.length = 256;
  return {{}, nn::make_model(table, shape)};
}

}  // namespace

int main(int argc, char** argv) try {
  const bool given = argc > 2;
  const Run run = given ? load(argv[1]) : untrained();
  decode::GenerateConfig config;
  config.tokens = given && argc > 3 ? std::atoll(argv[3]) : 200;
  decode::Session session{run.model->initial_state(1)};
  const auto show = [&](std::string_view text) {
    if (given) std::fwrite(text.data(), 1, text.size(), stdout);
  };
  std::string prompt = given ? argv[2] : "To be, or not to be";
  for (int part = 0; part < (given ? 1 : 4); ++part) {  // each part continues the last
    const decode::Generation made =
        decode::generate(*run.model, run.tokenizer, prompt, config, show, session);
    std::printf("%s%lld tokens, state %lld bytes\n", given ? "\n" : "",
                static_cast<long long>(session.state.position()),
                static_cast<long long>(made.state_bytes));
    prompt.clear();
  }
  return 0;
} catch (const hopmix::Error& error) {
  std::fprintf(stderr, "decode: %s\n", error.what());
  return 2;
}

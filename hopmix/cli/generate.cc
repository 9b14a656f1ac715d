#include "hopmix/decode/generate.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "hopmix/base/files.h"
#include "hopmix/base/status_line.h"
#include "hopmix/cli/commands.h"
#include "hopmix/cli/experiment_options.h"
#include "hopmix/decode/state_file.h"
#include "hopmix/decode/utf8_stream.h"
#include "hopmix/train/checkpoint.h"

namespace hopmix::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string run, load_state, save_state;
  std::optional<std::string> prompt;  // needed unless a state is loaded
  decode::GenerateConfig config;
  bool greedy = false, json = false;
};

struct TextRun {
  text::Tokenizer tokenizer;
  std::shared_ptr<nn::LanguageModel> model;
  std::string config;  // of the model
  int64_t step;
};

// The model and the tokenizer alone: the text that it was trained on may be gone.
TextRun load_text_run(const fs::path& run) {
  if (!fs::is_directory(run)) throw Error("'" + run.string() + "' is not a run directory");
  toml::table document = load_document(run, {});
  config::Table root(document);
  config::Table task = root.table("task");
  const std::string name = task.require("name");
  if (name != "text") {
    throw Error("'" + run.string() + "' was trained on the task '" + name +
                "': only a run of the task 'text' can generate");
  }
  if (const int64_t threads = root.get("threads", 0))
    at::set_num_threads(static_cast<int>(threads));
  TextRun result;
  if (task.get("tokenizer", "bytes") != "bytes") {
    result.tokenizer = text::Tokenizer::load(run / "tokenizer.model");
  }
  std::ostringstream config;
  config << *document["model"].as_table();
  result.config = config.str();
  config::Table model = root.table("model");
  nn::TaskShape shape;
  shape.vocabulary = result.tokenizer.vocabulary();
  shape.length = task.get_at_least("length", 1, 1);
  result.model = nn::make_model(model, shape);
  result.step = train::load_weights(run, *result.model);
  return result;
}

double per_second(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

void print_json(const Options& options, const decode::Generation& made, int64_t step) {
  const nlohmann::ordered_json json = {
      {"prompt", options.prompt.value_or("")},
      {"text", made.text},
      {"prompt_tokens", made.prompt_tokens},
      {"tokens", made.tokens},
      {"stopped", made.stopped},
      {"prompt_tokens_per_second", per_second(made.prompt_tokens, made.prompt_seconds)},
      {"tokens_per_second", per_second(made.tokens, made.seconds)},
      {"state_bytes", made.state_bytes},
      {"step", step}};
  std::printf("%s\n", json.dump(2).c_str());
}

void run_generate(Options options) {
  if (options.greedy) options.config.sampling.temperature = 0;
  if (!options.prompt && options.load_state.empty()) throw Error("--prompt is required");
  const std::string prompt = options.prompt.value_or("");
  for (const std::string& stop : options.config.stops) {
    if (decode::first_bad_utf8(stop)) throw Error("stop: must be UTF-8, which it is not");
  }
  const TextRun run = load_text_run(options.run);
  const bool kept = !options.load_state.empty() || !options.save_state.empty();
  const std::string mark = kept ? decode::fingerprint(*run.model, run.config) : "";
  decode::Session session{run.model->initial_state(1)};
  if (!options.load_state.empty()) {
    session = decode::load_session(options.load_state, *run.model, mark);
  }
  const auto show = [&](std::string_view text) {
    if (options.json) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  const decode::Generation made =
      decode::generate(*run.model, run.tokenizer, prompt, options.config, show, session);
  if (!options.save_state.empty()) decode::save_session(options.save_state, session, mark);
  if (options.json) {
    print_json(options, made, run.step);
    return;
  }
  std::printf("\n");
  std::fflush(stdout);
  std::fprintf(stderr, "%lld tokens, %s tokens/s (prompt: %lld, %s tokens/s), state %lld bytes\n",
               static_cast<long long>(made.tokens),
               format_count(per_second(made.tokens, made.seconds)).c_str(),
               static_cast<long long>(made.prompt_tokens),
               format_count(per_second(made.prompt_tokens, made.prompt_seconds)).c_str(),
               static_cast<long long>(made.state_bytes));
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("generate", "Go on with a text, from a run of the task text");
  const auto options = std::make_shared<Options>();
  decode::GenerateConfig& config = options->config;
  command->add_option("run", options->run, "A run directory")->required()->type_name("RUN_DIR");
  command->add_option("--prompt", options->prompt, "The text to go on with")->type_name("TEXT");
  command
      ->add_option("--load-state", options->load_state,
                   "Go on where --save-state left off, with the prompt behind it if there is one")
      ->type_name("FILE");
  command
      ->add_option("--save-state", options->save_state,
                   "Write what the model remembers of the text, once it is done")
      ->type_name("FILE");
  command->add_option("--tokens", config.tokens, "How many, at most")->capture_default_str();
  command
      ->add_option("--temperature", config.sampling.temperature,
                   "Logits are divided by it; 0: the most probable token, always")
      ->capture_default_str();
  command->add_option("--top-k", config.sampling.top_k, "Only the K most probable tokens; 0: all")
      ->capture_default_str();
  command
      ->add_option("--top-p", config.sampling.top_p,
                   "Of these, the fewest that have probability P together")
      ->capture_default_str();
  command->add_option("--seed", config.seed, "Of what is drawn")->capture_default_str();
  command
      ->add_option("--stop", config.stops,
                   "End before this text appears; may be given several times")
      ->type_name("TEXT")
      ->take_all();
  command->add_flag("--greedy", options->greedy, "The same as --temperature 0");
  command->add_flag("--json", options->json, "Print JSON once it is done");
  command->footer(
      "The text goes to stdout as it is made, speed and the bytes of the model's state to "
      "stderr.\n\n"
      "Examples:\n"
      "  hopmix generate runs/text-glr --prompt 'ROMEO:'\n"
      "  hopmix generate runs/text-glr --prompt 'ROMEO:' --temperature 0.8 --top-p 0.95 --stop "
      "$'\\n\\n'\n"
      "  hopmix generate runs/text-glr --prompt 'ROMEO:' --save-state romeo.safetensors\n"
      "  hopmix generate runs/text-glr --load-state romeo.safetensors --prompt 'JULIET:'");
  command->callback([options] { run_generate(*options); });
}

}  // namespace hopmix::cli

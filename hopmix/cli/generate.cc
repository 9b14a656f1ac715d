#include "hopmix/decode/generate.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "hopmix/base/files.h"
#include "hopmix/base/status_line.h"
#include "hopmix/base/utf8.h"
#include "hopmix/cli/commands.h"
#include "hopmix/cli/experiment_options.h"
#include "hopmix/cli/prompts.h"
#include "hopmix/decode/state_file.h"
#include "hopmix/decode/utf8_stream.h"
#include "hopmix/train/checkpoint.h"
#include "hopmix/train/inputs.h"

namespace hopmix::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string run, load_state, save_state, prompts;
  std::optional<std::string> prompt;  // required without --load-state and --prompts
  int64_t batch = 16;
  decode::GenerateConfig config;
  bool greedy = false, json = false;
};

struct TextRun {
  text::Tokenizer tokenizer;
  std::shared_ptr<nn::LanguageModel> model;
  std::string config;  // of the model, with the hashes of the files it reads
  int64_t step;
};

// Loads the model and its tokenizer only; the training text may be gone.
TextRun load_text_run(const fs::path& run) {
  if (!fs::is_directory(run)) throw Error("'" + run.string() + "' is not a run directory");
  toml::table document = load_document(run, {});
  config::Table root(document);
  config::Table task = root.table("task");
  const std::string name = task.require("name");
  if (name != "text") {
    throw Error("'" + run.string() + "' was trained on the task '" + name +
                "': must be a run of the task 'text'");
  }
  if (const int64_t threads = root.get("threads", 0))
    at::set_num_threads(static_cast<int>(threads));
  TextRun result;
  if (task.get("tokenizer", "bytes") != "bytes") {
    result.tokenizer = text::Tokenizer::load(run / "tokenizer.model");
  }
  const train::Inputs inputs = train::pattern_inputs(*document["model"].as_table());
  train::check_inputs(run, inputs);
  std::ostringstream config;
  config << *document["model"].as_table();
  for (const auto& [key, input] : inputs) config << '\n' << key << ' ' << hex(input.digest.hash);
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

// Prints one finished text: `==> LINE <==`, then the prompt followed by its text.
void show_text(const Options& options, size_t i, const std::string& prompt,
               const decode::Batch::Left& left, int64_t step) {
  if (options.json) {
    nlohmann::ordered_json json = {{"prompt", prompt},
                                   {"text", left.made.text},
                                   {"prompt_tokens", left.made.prompt_tokens},
                                   {"tokens", left.made.tokens},
                                   {"stopped", left.made.stopped},
                                   {"seed", options.config.seed + i},
                                   {"state_bytes", left.made.state_bytes},
                                   {"step", step}};
    if (!left.error.empty()) json["error"] = left.error;
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s==> %zu <==\n%s%s\n", i > 0 ? "\n" : "", i + 1, prompt.c_str(),
                left.made.text.c_str());
  }
  flush_output();
}

void run_prompts(const Options& options, const std::vector<std::string>& prompts,
                 const TextRun& run, const decode::Session& session) {
  const PromptsTotal total =
      go_on(*run.model, run.tokenizer, prompts, options.config, session, options.batch,
            [&](size_t i, const decode::Batch::Left& left) {
              show_text(options, i, prompts[i], left, run.step);
              if (left.error.empty()) return;
              std::fprintf(stderr, "line %zu: %s\n", i + 1, left.error.c_str());
            });
  std::fprintf(stderr, "%zu texts, %lld tokens, %s tokens/s (prompts: %lld, %s tokens/s)\n",
               prompts.size(), static_cast<long long>(total.tokens),
               format_count(per_second(total.tokens, total.seconds)).c_str(),
               static_cast<long long>(total.prompt_tokens),
               format_count(per_second(total.prompt_tokens, total.prompt_seconds)).c_str());
  if (total.failed.empty()) return;
  throw Error(std::to_string(total.failed.size()) + " of " + std::to_string(prompts.size()) +
              " texts failed, the first on line " + std::to_string(total.failed.front() + 1));
}

void check(const Options& options) {
  const bool many = !options.prompts.empty();
  if (many && options.prompt) throw Error("--prompt: cannot be combined with --prompts");
  if (many && !options.save_state.empty()) {
    throw Error("--save-state: saves a single text and cannot be combined with --prompts");
  }
  if (options.batch < 1) {
    throw Error("--batch = " + std::to_string(options.batch) + ": must be at least 1");
  }
  if (!many && !options.prompt && options.load_state.empty()) throw Error("--prompt is required");
  for (const std::string& stop : options.config.stops) {
    if (first_bad_utf8(stop)) throw Error("--stop: must be valid UTF-8");
  }
  if (many) decode::check(options.config);
}

void run_generate(Options options) {
  if (options.greedy) options.config.sampling.temperature = 0;
  check(options);
  std::vector<std::string> prompts;
  if (!options.prompts.empty()) prompts = read_prompts(options.prompts);
  const std::string prompt = options.prompt.value_or("");
  const TextRun run = load_text_run(options.run);
  const bool kept = !options.load_state.empty() || !options.save_state.empty();
  const std::string mark = kept ? decode::fingerprint(*run.model, run.config) : "";
  decode::Session session{run.model->initial_state(1)};
  if (!options.load_state.empty()) {
    session = decode::load_session(options.load_state, *run.model, mark);
  }
  if (!prompts.empty()) return run_prompts(options, prompts, run, session);
  const auto show = [&](std::string_view text) {
    if (options.json) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    flush_output();
  };
  const decode::Generation made =
      decode::generate(*run.model, run.tokenizer, prompt, options.config, show, session);
  if (!options.save_state.empty()) decode::save_session(options.save_state, session, mark);
  if (options.json) {
    print_json(options, made, run.step);
    return;
  }
  std::printf("\n");
  flush_output();
  std::fprintf(stderr, "%lld tokens, %s tokens/s (prompt: %lld, %s tokens/s), state %lld bytes\n",
               static_cast<long long>(made.tokens),
               format_count(per_second(made.tokens, made.seconds)).c_str(),
               static_cast<long long>(made.prompt_tokens),
               format_count(per_second(made.prompt_tokens, made.prompt_seconds)).c_str(),
               static_cast<long long>(made.state_bytes));
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Generate text with a run of the task text");
  const auto options = std::make_shared<Options>();
  decode::GenerateConfig& config = options->config;
  command->add_option("run", options->run, "A run directory")->required()->type_name("RUN_DIR");
  command->add_option("--prompt", options->prompt, "The text to continue")->type_name("TEXT");
  CLI::Option* prompts =
      command
          ->add_option("--prompts", options->prompts,
                       "A file with one prompt per line, generated in batches; - is stdin")
          ->type_name("FILE");
  command
      ->add_option("--batch", options->batch,
                   "Largest batch of --prompts; the next prompt joins when a text ends")
      ->capture_default_str()
      ->needs(prompts);
  command
      ->add_option("--load-state", options->load_state,
                   "Continue from a file of --save-state, with the prompt, if any, appended")
      ->type_name("FILE");
  command
      ->add_option("--save-state", options->save_state,
                   "Save the model's state at the end of the text")
      ->type_name("FILE");
  command->add_option("--tokens", config.tokens, "Most tokens to generate")->capture_default_str();
  command
      ->add_option("--temperature", config.sampling.temperature,
                   "Divides the logits; 0 always takes the most probable token")
      ->capture_default_str();
  command
      ->add_option("--top-k", config.sampling.top_k,
                   "Sample from the K most probable tokens; 0: from all")
      ->capture_default_str();
  command
      ->add_option("--top-p", config.sampling.top_p,
                   "Then from the fewest tokens whose probabilities reach P")
      ->capture_default_str();
  command->add_option("--seed", config.seed, "Random seed; line i of --prompts uses SEED + i - 1")
      ->capture_default_str();
  command->add_option("--stop", config.stops, "Stop before this text appears; may be repeated")
      ->type_name("TEXT")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--greedy", options->greedy, "Same as --temperature 0");
  command->add_flag("--json", options->json,
                    "Print JSON at the end; with --prompts, one line per text");
  command->footer(
      "The text goes to stdout as it is generated; speed and the size of the state go to "
      "stderr.\n\n"
      "Examples:\n"
      "  hopmix generate runs/text-glr --prompt 'ROMEO:'\n"
      "  hopmix generate runs/text-glr --prompt 'ROMEO:' --temperature 0.8 --top-p 0.95 --stop "
      "$'\\n\\n'\n"
      "  hopmix generate runs/text-glr --prompts prompts.txt --batch 8 --json > texts.jsonl\n"
      "  hopmix generate runs/text-glr --prompt 'ROMEO:' --save-state romeo.safetensors\n"
      "  hopmix generate runs/text-glr --load-state romeo.safetensors --prompt 'JULIET:'");
  command->callback([options] { run_generate(*options); });
}

}  // namespace hopmix::cli

#include "hopmix/train/train.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "hopmix/base/status_line.h"
#include "hopmix/base/text_table.h"
#include "hopmix/cli/commands.h"
#include "hopmix/cli/experiment_options.h"
#include "hopmix/cli/score_table.h"

namespace hopmix::cli {
namespace {

constexpr int kInterrupted = 130;  // a shell's exit code for SIGINT

// `text` quoted so that a shell reads it as one word.
std::string shell_word(const std::string& text) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) || std::strchr("/._-+,:@%", c); };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

struct Options {
  std::string config, out;
  std::vector<std::string> settings;
  bool resume = false, quiet = false, json = false;
};

void run_train(const Options& options) {
  const std::filesystem::path source(options.config);
  toml::table document = load_document(source, options.settings);
  const bool is_run = std::filesystem::is_directory(source);
  const std::filesystem::path run =
      !options.out.empty() ? std::filesystem::path(options.out)
                           : (is_run ? source : std::filesystem::path("runs") / source.stem());

  train::Experiment experiment = train::make_experiment(std::move(document));
  if (!options.quiet) {
    std::fprintf(stderr, "%s: %s, %lld parameters, %lld steps of %lld sequences of %lld tokens\n",
                 run.c_str(), experiment.task.name.c_str(),
                 static_cast<long long>(experiment.model->parameter_count()),
                 static_cast<long long>(experiment.train.steps),
                 static_cast<long long>(experiment.train.batch),
                 static_cast<long long>(experiment.task.length));
  }
  const train::TrainResult result = train::train(experiment, run, options.resume, options.quiet);
  if (result.interrupted) {
    std::fprintf(stderr,
                 "stopped and saved at step %lld; continue with\n  hopmix train %s --resume\n",
                 static_cast<long long>(result.step), shell_word(run).c_str());
    throw CLI::RuntimeError(kInterrupted);
  }
  if (options.json) {
    std::printf("%s\n", train::to_json(result.score, experiment.task.slice_name).dump(2).c_str());
  } else if (!options.quiet) {
    print_score(result.score, experiment.task);
    std::printf("%s trained in %s\n", run.c_str(), format_duration(result.seconds).c_str());
  }
}

// "  copy              the symbols ... (symbols, m)" for each task.
std::string task_list() {
  std::vector<std::vector<std::string>> rows;
  for (const tasks::TaskInfo& task : tasks::tasks()) {
    std::string keys;
    for (const tasks::TaskKey& key : task.keys) keys += (keys.empty() ? "" : ", ") + key.name;
    rows.push_back({"  " + task.name, task.description, keys});
  }
  return text_table({"Tasks", "", "keys"}, rows, {true, true, true});
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("train", "Train the experiment that a TOML config describes");
  const auto options = std::make_shared<Options>();
  command->add_option("config", options->config, "A config, or a run directory to resume")
      ->required()
      ->type_name("CONFIG.toml");
  add_set_option(*command, options->settings);
  command->add_option("--out", options->out, "Run directory (runs/NAME for NAME.toml)")
      ->type_name("DIR");
  command->add_flag("--resume", options->resume, "Continue from the last checkpoint");
  command->add_flag("--quiet", options->quiet, "Print errors only");
  command->add_flag("--json", options->json, "Print the final score as JSON");
  command->footer(
      std::string(
          "The run directory gets config.toml (as resolved), metrics.jsonl, model.safetensors,\n"
          "optimizer.safetensors and state.json. Ctrl-C saves and stops.\n\n") +
      task_list() +
      "\nMixers: see `hopmix mixers`.\n\n"
      "Examples:\n"
      "  hopmix train configs/copy.toml\n"
      "  hopmix train configs/copy.toml --set model.blocks.0.pattern='cached(2^k)' --out "
      "runs/copy-2k\n"
      "  hopmix train runs/copy --resume");
  command->callback([options] { run_train(*options); });
}

}  // namespace hopmix::cli

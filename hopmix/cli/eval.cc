#include "hopmix/cli/commands.h"
#include "hopmix/cli/experiment_options.h"
#include "hopmix/cli/score_table.h"
#include "hopmix/train/train.h"

namespace hopmix::cli {
namespace {

struct Options {
  std::string run;
  std::vector<std::string> settings;
  bool json = false;
};

void run_eval(const Options& options) {
  if (!std::filesystem::is_directory(options.run)) {
    throw Error("'" + options.run + "' is not a run directory");
  }
  train::Experiment experiment =
      train::make_experiment(load_document(options.run, options.settings));
  if (experiment.threads > 0) at::set_num_threads(static_cast<int>(experiment.threads));
  const int64_t step = train::load_run(options.run, experiment);
  const train::Score score = train::evaluate(experiment);
  if (options.json) {
    nlohmann::json json = train::to_json(score, experiment.task.slice_name);
    json["step"] = step;
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    print_score(score, experiment.task);
  }
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "Evaluate a trained run on fresh data, by slice");
  const auto options = std::make_shared<Options>();
  command->add_option("run", options->run, "A run directory")->required()->type_name("RUN_DIR");
  add_set_option(*command, options->settings);
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  hopmix eval runs/multi_hop\n"
      "  hopmix eval runs/multi_hop --set train.eval_batches=100 --json\n"
      "  hopmix eval runs/multi_hop --set seed=7");
  command->callback([options] { run_eval(*options); });
}

}  // namespace hopmix::cli

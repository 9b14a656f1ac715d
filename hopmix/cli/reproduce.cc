#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "hopmix/base/files.h"
#include "hopmix/base/nearest.h"
#include "hopmix/base/status_line.h"
#include "hopmix/base/text_table.h"
#include "hopmix/cli/commands.h"
#include "hopmix/cli/experiment_options.h"
#include "hopmix/cli/jobs.h"
#include "hopmix/cli/propositions.h"
#include "hopmix/cli/sweep_plot.h"
#include "hopmix/cli/theorem.h"
#include "hopmix/train/experiment.h"
#include "hopmix/train/interrupt.h"
#include "hopmix/train/run_directory.h"
#include "hopmix/train/sweep.h"
#include "hopmix/train/train.h"

namespace hopmix::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kInterrupted = 130;
// These train nothing: one measures patterns, the other builds a model with constructed weights.
constexpr const char* kPropositions = "propositions";
constexpr const char* kTheorem = "theorem";

struct Options {
  std::string name;
  int64_t seeds = 1, jobs = 1, draws = 5;
  std::vector<std::string> settings;
  std::string runs = "runs", results = "results";
  bool json = false, no_plot = false;
};

// Looks in the working directory first, so that a checkout's own files take precedence over those
// of the build.
std::vector<fs::path> sweep_folders() {
  return {"configs/reproduce", fs::path(HOPMIX_CONFIG_DIR) / "reproduce"};
}

fs::path find_sweep(const std::string& name) {
  if (name.ends_with(".toml")) return name;
  std::vector<std::string> known = {kPropositions, kTheorem};
  for (const fs::path& folder : sweep_folders()) {
    if (!fs::is_directory(folder)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".toml") continue;
      if (entry.path().stem() == name) return entry.path();
      known.push_back(entry.path().stem());
    }
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  throw Error("unknown reproduction '" + name + "'" + suggestion(name, known));
}

// Reusing a run with a different config, or with files that changed, would mix two experiments in
// one table.
void check_run(const train::Cell& cell, const train::Experiment& experiment) {
  if (!train::has_progress(cell.run)) return;
  const fs::path config = cell.run / "config.toml";
  const std::string difference = train::first_difference(
      config::parse_file(config), experiment.config, config.string(), "this table");
  if (!difference.empty()) {
    throw Error("'" + cell.run.string() + "' was created with a different config (" + difference +
                "); remove it, or choose another folder with --runs");
  }
  train::check_inputs(cell.run, experiment.inputs);
}

train::Experiment make(const train::Cell& cell) {
  try {
    return train::make_experiment(cell.config);
  } catch (const Error& error) {
    throw Error(cell.run.string() + ": " + error.what());
  }
}

// Why a child failed: its error output, else its exit code.
std::string reason(const JobEnd& end) {
  std::string text = end.errors;
  while (text.ends_with("\n")) text.pop_back();
  if (text.starts_with("hopmix: ")) text.erase(0, 8);
  if (!text.empty()) return text;
  return end.code > 128 ? "killed by signal " + std::to_string(end.code - 128)
                        : "exited with code " + std::to_string(end.code);
}

// Redraws the table in place on a terminal; elsewhere prints a line for each finished cell.
class LiveTable {
 public:
  explicit LiveTable(bool quiet) : quiet_(quiet), terminal_(!quiet && isatty(STDERR_FILENO)) {}

  void draw(const std::string& text) {
    if (!terminal_) return;
    if (lines_ > 0) std::fprintf(stderr, "\033[%dA\033[J", lines_);
    // Disable wrapping: a wrapped line would not be overwritten.
    std::fprintf(stderr, "\033[?7l%s\033[?7h", text.c_str());
    lines_ = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

  void say(const std::string& line) const {
    if (!quiet_ && !terminal_) std::fprintf(stderr, "%s\n", line.c_str());
  }

  void clear() { draw(""); }

 private:
  bool quiet_, terminal_;
  int lines_ = 0;
};

// What remains to be trained: the command of each incomplete cell.
struct Plan {
  std::vector<size_t> cells;
  std::vector<std::vector<std::string>> commands;
};

// Resolves every cell's config before training the first, so that a mistake in the last row shows
// at once.
Plan make_plan(const std::vector<train::Cell>& cells, const std::vector<nlohmann::json>& results) {
  Plan plan;
  for (size_t i = 0; i < cells.size(); ++i) {
    const train::Experiment experiment = make(cells[i]);
    check_run(cells[i], experiment);
    if (!results[i].is_null()) continue;
    const fs::path config = cells[i].run.string() + ".toml";
    fs::create_directories(config.parent_path());
    write_file(config, config::to_string(experiment.config));
    plan.cells.push_back(i);
    plan.commands.push_back({this_program(), "train", config.string(), "--out",
                             cells[i].run.string(), "--resume", "--quiet"});
  }
  return plan;
}

// Trains what the plan lists and fills `results`. Throws Error on the first run that fails.
void train_cells(const train::Sweep& sweep, const std::vector<train::Cell>& cells, const Plan& plan,
                 const Options& options, std::vector<nlohmann::json>& results) {
  LiveTable live(options.json);
  live.say(sweep.title + ": " + std::to_string(cells.size()) + " runs, " +
           std::to_string(cells.size() - plan.cells.size()) + " already done");
  const train::InterruptGuard interrupt;
  const StatusLine clock(/*quiet=*/true);
  const std::string total = "/" + std::to_string(plan.cells.size());
  size_t done = 0;
  std::string failure;
  const auto tick = [&] {
    std::string left;
    if (done > 0) {
      const auto waiting = static_cast<double>(plan.cells.size() - done);
      left =
          ", " + format_duration(clock.seconds() / static_cast<double>(done) * waiting) + " left";
    }
    live.draw(train::to_text(sweep, train::collect(sweep, cells, results)) + "\n" +
              std::to_string(done) + total + " runs" + left + "\n");
  };
  const auto ended = [&](const JobEnd& end) {
    const size_t i = plan.cells[end.index];
    if (end.code == kInterrupted) return;
    if (end.code != 0) {
      if (failure.empty()) failure = cells[i].run.string() + ": " + reason(end);
      return;
    }
    results[i] = train::final_score(cells[i].run);
    ++done;
    live.say(std::to_string(done) + total + "  " + cells[i].run.string() + "  accuracy " +
             fixed(results[i].at("accuracy").get<double>(), 2) + "%");
  };
  run_jobs(plan.commands, options.jobs, ended, tick,
           [&] { return interrupt.interrupted() || !failure.empty(); });
  live.clear();
  if (!failure.empty()) throw Error(failure);
  if (interrupt.interrupted()) {
    std::fprintf(stderr, "stopped; every run was saved. Run the same command to continue.\n");
    throw CLI::RuntimeError(kInterrupted);
  }
}

// Checks, before any training, that the trained weights will fit the evaluated model.
void check_evaluation(const train::Sweep& sweep, const train::Cell& cell,
                      const std::vector<train::Cell>& cells) {
  make(cell);
  const auto trained = std::find_if(cells.begin(), cells.end(),
                                    [&](const train::Cell& c) { return c.run == cell.run; });
  const toml::table resolved = make(*trained).config;
  toml::table otherwise = resolved;
  for (const std::string& setting : sweep.evaluations[cell.row].settings) {
    config::set(otherwise, setting);
  }
  const auto sizes = [](const toml::table& of) {
    std::map<std::string, std::vector<int64_t>> result;
    for (const auto& item : train::make_experiment(of).model->named_parameters()) {
      result[item.key()] = item.value().sizes().vec();
    }
    return result;
  };
  if (sizes(otherwise) == sizes(resolved)) return;
  throw Error("evaluations." + std::to_string(cell.row) +
              ".set: describes a different model than '" + sweep.rows[trained->row].name +
              "' trains; its weights would not fit");
}

// The second table: `results` of evaluation_cells.
std::vector<nlohmann::json> evaluate_cells(const train::Sweep& sweep,
                                           const std::vector<train::Cell>& cells) {
  std::vector<nlohmann::json> results;
  for (const train::Cell& cell : cells) {
    train::Experiment experiment = train::make_experiment(
        load_document(cell.run.string(), sweep.evaluations[cell.row].settings));
    at::set_num_threads(1);
    train::load_run(cell.run, experiment);
    results.push_back(train::to_json(train::evaluate(experiment), experiment.task.slice_name));
  }
  return results;
}

void reproduce_sweep(const Options& options) {
  const train::Sweep sweep = train::read_sweep(find_sweep(options.name));
  std::vector<std::string> settings = options.settings;
  for (const std::string& setting : settings) {
    if (setting.starts_with("seed="))
      throw Error("--set " + setting + ": use --seeds to choose the number of seeds");
    if (setting.starts_with("threads="))
      throw Error("--set " + setting +
                  ": each run uses one thread; use --jobs to run several at once");
  }
  // One thread per run: processes share the machine, and results are reproducible.
  settings.push_back("threads=1");
  const std::vector<train::Cell> cells =
      train::make_cells(sweep, options.seeds, fs::path(options.runs) / sweep.name, settings);
  const std::vector<train::Cell> second_cells = train::evaluation_cells(sweep, cells);
  for (const train::Cell& cell : second_cells) check_evaluation(sweep, cell, cells);
  std::vector<nlohmann::json> results = train::read_results(cells);
  train_cells(sweep, cells, make_plan(cells, results), options, results);

  nlohmann::json json = train::to_json(sweep, cells, results);
  std::string second;
  if (!sweep.evaluations.empty()) {
    const train::Sweep other = train::evaluation_sweep(sweep);
    const std::vector<nlohmann::json> scores = evaluate_cells(sweep, second_cells);
    json["evaluations"] = train::to_json(other, second_cells, scores)["rows"];
    second = "\n" + train::to_text(other, train::collect(other, second_cells, scores));
  }
  fs::create_directories(options.results);
  const fs::path stem = fs::path(options.results) / sweep.name;
  write_file(stem.string() + ".json", json.dump(2) + "\n");
  const train::AccuracyTable table = train::collect(sweep, cells, results);
  if (!options.no_plot) {
    for (const char* ending : {".svg", ".png"}) plot_sweep(sweep, table, stem.string() + ending);
  }
  if (options.json) {
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::printf("%s%s\nWritten: %s.json%s\n", train::to_text(sweep, table).c_str(), second.c_str(),
                stem.c_str(), options.no_plot ? "" : ", .svg, .png");
  }
}

void run_reproduce(const CLI::App& command, const Options& options) {
  const bool theorem = options.name == kTheorem;
  if (!theorem && command.count("--draws") > 0) {
    throw Error("--draws does not apply to " + options.name + ": it is for theorem");
  }
  if (!theorem && options.name != kPropositions) return reproduce_sweep(options);
  for (const char* option : {"--seeds", "--jobs", "--set", "--runs", "--results", "--no-plot"}) {
    if (command.count(option) > 0) {
      throw Error(std::string(option) + " does not apply to " + options.name +
                  ": it trains nothing");
    }
  }
  if (theorem) return reproduce_theorem(options.draws, options.json);
  reproduce_propositions(options.json);
}

}  // namespace

void add_reproduce(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "reproduce", "Reproduce a table of the papers, with their figures alongside");
  const auto options = std::make_shared<Options>();
  command
      ->add_option("name", options->name,
                   "A file in configs/reproduce, such as table1, or a path; or propositions,\n"
                   "or theorem")
      ->required()
      ->type_name("NAME");
  command->add_option("--seeds", options->seeds, "Seeds per cell")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--jobs", options->jobs, "Runs in parallel, one thread each")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--draws", options->draws,
                   "For theorem: random choices of functions, each asked every question")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  add_set_option(*command, options->settings);
  command->add_option("--runs", options->runs, "Folder for the runs")
      ->capture_default_str()
      ->type_name("DIR");
  command->add_option("--results", options->results, "Folder for the JSON and the plots")
      ->capture_default_str()
      ->type_name("DIR");
  command->add_flag("--no-plot", options->no_plot, "Skip the plots (gnuplot is then not needed)");
  command->add_flag("--json", options->json, "Print JSON instead of the table");
  command->footer(
      "Completed runs are reused. Ctrl-C saves the running ones; the same command continues "
      "them.\n\n"
      "Examples:\n"
      "  hopmix reproduce table1 --jobs 2\n"
      "  hopmix reproduce table1 --seeds 3 --jobs 8\n"
      "  hopmix reproduce propositions\n"
      "  hopmix reproduce theorem --draws 1\n"
      "  hopmix reproduce mura --jobs 2\n"
      "  hopmix reproduce demo --set train.steps=50 --runs /tmp/try --results /tmp/try");
  command->callback([command, options] { run_reproduce(*command, *options); });
}

}  // namespace hopmix::cli

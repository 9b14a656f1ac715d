#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "hopmix/base/files.h"
#include "hopmix/base/nearest.h"
#include "hopmix/cli/commands.h"
#include "hopmix/cli/experiment_options.h"
#include "hopmix/cli/jobs.h"
#include "hopmix/cli/sweep_plot.h"
#include "hopmix/train/experiment.h"
#include "hopmix/train/interrupt.h"
#include "hopmix/train/progress.h"
#include "hopmix/train/sweep.h"
#include "hopmix/train/train.h"

namespace hopmix::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kInterrupted = 130;

struct Options {
  std::string name;
  int64_t seeds = 1, jobs = 1;
  std::vector<std::string> settings;
  std::string runs = "runs", results = "results";
  bool json = false, list = false, no_plot = false;
};

// Beside the working directory first, so that a checkout's own files win over the ones it was built
// from.
std::vector<fs::path> sweep_folders() {
  return {"configs/reproduce", fs::path(HOPMIX_CONFIG_DIR) / "reproduce"};
}

fs::path find_sweep(const std::string& name) {
  if (name.ends_with(".toml")) return name;
  std::vector<std::string> known;
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
  throw Error("reproduction '" + name + "' is not known" + suggestion(name, known));
}

// A cell whose directory holds another config would mix two experiments in one table.
void check_run(const train::Cell& cell, const toml::table& resolved) {
  const fs::path config = cell.run / "config.toml";
  if (!fs::exists(config)) return;
  const std::string difference =
      train::first_difference(config::parse_file(config), resolved, config.string(), "this table");
  if (!difference.empty()) {
    throw Error("'" + cell.run.string() + "' is of another config (" + difference +
                "); remove it, or give --runs another folder");
  }
}

toml::table resolve(const train::Cell& cell) {
  try {
    return train::make_experiment(cell.config).config;
  } catch (const Error& error) {
    throw Error(cell.run.string() + ": " + error.what());
  }
}

// What a child that failed said, or that it said nothing.
std::string reason(const JobEnd& end) {
  std::string text = end.errors;
  while (text.ends_with("\n")) text.pop_back();
  if (text.starts_with("hopmix: ")) text.erase(0, 8);
  if (!text.empty()) return text;
  return end.code > 128 ? "ended by signal " + std::to_string(end.code - 128)
                        : "ended with code " + std::to_string(end.code);
}

// Redraws the table in place on a terminal; elsewhere says a line for each cell that ends.
class LiveTable {
 public:
  explicit LiveTable(bool quiet) : quiet_(quiet), terminal_(!quiet && isatty(STDERR_FILENO)) {}

  void draw(const std::string& text) {
    if (!terminal_) return;
    if (lines_ > 0) std::fprintf(stderr, "\033[%dA\033[J", lines_);
    std::fputs(text.c_str(), stderr);
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

void run_reproduce(const Options& options) {
  const train::Sweep sweep = train::read_sweep(find_sweep(options.name));
  std::vector<std::string> settings = options.settings;
  // Processes share the machine by halves; one thread each is also what makes a cell's numbers
  // repeat.
  settings.push_back("threads=1");
  std::vector<train::Cell> cells =
      train::make_cells(sweep, options.seeds, fs::path(options.runs) / sweep.name, settings);
  std::vector<nlohmann::json> results = train::read_results(cells);

  // Every cell's config is resolved before the first is trained: a mistake in the last row costs no
  // hour.
  std::vector<std::vector<std::string>> commands;
  std::vector<size_t> waiting;
  for (size_t i = 0; i < cells.size(); ++i) {
    const toml::table resolved = resolve(cells[i]);
    check_run(cells[i], resolved);
    if (!results[i].is_null()) continue;
    const fs::path config = cells[i].run.string() + ".toml";
    fs::create_directories(config.parent_path());
    write_file(config, config::to_string(resolved));
    commands.push_back({this_program(), "train", config.string(), "--out", cells[i].run.string(),
                        "--resume", "--quiet"});
    waiting.push_back(i);
  }
  LiveTable live(options.json);
  live.say(sweep.title + ": " + std::to_string(cells.size()) + " runs, " +
           std::to_string(cells.size() - waiting.size()) + " done before");

  const train::InterruptGuard interrupt;
  train::Progress clock(/*quiet=*/true, 0, 0);
  size_t done = 0;
  std::string failure;
  const auto tick = [&] {
    const double left = done ? clock.seconds() / static_cast<double>(done) *
                                   static_cast<double>(waiting.size() - done)
                             : 0;
    live.draw(train::to_text(sweep, train::collect(sweep, cells, results)) + "\n" +
              std::to_string(done) + "/" + std::to_string(waiting.size()) + " runs" +
              (done ? ", " + train::format_duration(left) + " left" : "") + "\n");
  };
  const auto ended = [&](const JobEnd& end) {
    const size_t i = waiting[end.index];
    if (end.code == kInterrupted) return;
    if (end.code != 0) {
      if (failure.empty()) failure = cells[i].run.string() + ": " + reason(end);
      return;
    }
    results[i] = train::final_score(cells[i].run);
    ++done;
    char accuracy[32];
    std::snprintf(accuracy, sizeof accuracy, "%.2f%%", results[i].at("accuracy").get<double>());
    live.say(std::to_string(done) + "/" + std::to_string(waiting.size()) + "  " +
             cells[i].run.string() + "  accuracy " + accuracy);
  };
  run_jobs(commands, options.jobs, ended, tick,
           [&] { return interrupt.interrupted() || !failure.empty(); });
  live.clear();

  if (!failure.empty()) throw Error(failure);
  if (interrupt.interrupted()) {
    std::fprintf(stderr, "stopped; every run was saved. Go on with the same command.\n");
    throw CLI::RuntimeError(kInterrupted);
  }
  const nlohmann::json json = train::to_json(sweep, cells, results);
  fs::create_directories(options.results);
  const fs::path stem = fs::path(options.results) / sweep.name;
  write_file(stem.string() + ".json", json.dump(2) + "\n");
  const train::Table table = train::collect(sweep, cells, results);
  if (!options.no_plot) {
    for (const char* ending : {".svg", ".png"}) plot_sweep(sweep, table, stem.string() + ending);
  }
  if (options.json) {
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::printf("%s\nWritten: %s.json%s\n", train::to_text(sweep, table).c_str(), stem.c_str(),
                options.no_plot ? "" : ", .svg, .png");
  }
}

}  // namespace

void add_reproduce(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "reproduce", "Fill a table of structures by tasks, beside the paper's figures");
  const auto options = std::make_shared<Options>();
  command
      ->add_option("name", options->name, "A file of configs/reproduce, such as table1, or a path")
      ->required()
      ->type_name("NAME");
  command->add_option("--seeds", options->seeds, "Seeds a cell")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--jobs", options->jobs, "Runs at a time, one thread each")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_set_option(*command, options->settings);
  command->add_option("--runs", options->runs, "Folder of the runs")
      ->capture_default_str()
      ->type_name("DIR");
  command->add_option("--results", options->results, "Folder of the JSON and the plot")
      ->capture_default_str()
      ->type_name("DIR");
  command->add_flag("--no-plot", options->no_plot, "Write no plot (no gnuplot needed)");
  command->add_flag("--json", options->json, "Print the JSON instead of the table");
  command->footer(
      "Runs that are complete are taken as they are; Ctrl-C saves, and the same command goes "
      "on.\n\n"
      "Examples:\n"
      "  hopmix reproduce table1 --jobs 2\n"
      "  hopmix reproduce table1 --seeds 3 --jobs 8\n"
      "  hopmix reproduce demo --set train.steps=50 --runs /tmp/try --results /tmp/try");
  command->callback([options] { run_reproduce(*options); });
}

}  // namespace hopmix::cli

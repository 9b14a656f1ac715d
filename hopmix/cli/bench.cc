#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <thread>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"
#include "hopmix/base/nearest.h"
#include "hopmix/base/status_line.h"
#include "hopmix/base/text_table.h"
#include "hopmix/bench/bandwidth.h"
#include "hopmix/bench/gemm.h"
#include "hopmix/bench/machine.h"
#include "hopmix/bench/plot.h"
#include "hopmix/bench/report.h"
#include "hopmix/bench/training.h"
#include "hopmix/cli/bench_decode.h"
#include "hopmix/cli/commands.h"
#include "hopmix/train/interrupt.h"
#include "hopmix/train/sweep.h"

namespace hopmix::cli {
namespace {

constexpr int kInterrupted = 130;
constexpr const char* kTraining = "train";  // steps of a model, not an operator
constexpr const char* kProducts = "gemm";

struct Options {
  std::vector<std::string> names;
  std::vector<int64_t> lengths;
  std::optional<int64_t> batch, heads, width;
  std::string dtype = "float32", json, plot;
  int threads = 1;
  std::optional<int> repetitions;
  bool list = false, forward = false, backward = false, crossover = false, no_peers = false;
};

void print_list() {
  std::vector<std::vector<std::string>> rows;
  for (const bench::Case& one : bench::cases()) {
    rows.push_back({one.name, one.computes, one.by_default ? "" : "on request"});
  }
  rows.push_back({kTraining, "training steps of the models of table 1, with a profile", "alone"});
  rows.push_back({kProducts, "matrix products by each engine and by torch.mm", "alone"});
  rows.push_back(
      {kDecoding, "time and state bytes of one decoding step, by context length", "alone"});
  std::printf("%s", text_table({"benchmark", "", ""}, rows, {true, true, true}).c_str());
}

bool has_name(const std::vector<bench::Case>& list, const std::string& name) {
  return std::any_of(list.begin(), list.end(),
                     [&](const bench::Case& one) { return one.name == name; });
}

bool is_long(const std::vector<bench::Case>& list) {
  return std::all_of(list.begin(), list.end(),
                     [](const bench::Case& one) { return one.group == bench::kLong; });
}

// The cases named, plus the peers to compare them with; the long sweep has no peers.
std::vector<bench::Case> choose_cases(const Options& options) {
  std::vector<bench::Case> chosen = bench::select_cases(options.names);
  if (options.no_peers && options.names.empty()) {
    chosen.erase(std::remove_if(chosen.begin(), chosen.end(),
                                [](const bench::Case& one) { return one.is_peer; }),
                 chosen.end());
  }
  if (options.no_peers || is_long(chosen)) return chosen;
  for (const bench::Case& one : bench::cases()) {
    if (one.is_peer && !has_name(chosen, one.name)) chosen.push_back(one);
  }
  return chosen;
}

std::vector<int64_t> powers(int64_t first, int64_t last, int64_t factor) {
  std::vector<int64_t> list;
  for (int64_t length = first; length <= last; length *= factor) list.push_back(length);
  return list;
}

std::vector<bench::Shape> choose_shapes(const Options& options, bool is_long) {
  std::vector<int64_t> lengths = options.lengths;
  const bool sized = options.batch || options.heads || options.width;
  const bool standard = lengths.empty() && !sized && !options.crossover && !is_long;
  if (lengths.empty()) {
    lengths = options.crossover ? powers(64, 8192, 2)
              : is_long         ? powers(256, int64_t{1} << 20, 4)
                                : powers(256, 4096, 4);
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  std::vector<bench::Shape> shapes;
  for (const int64_t length : lengths) {
    shapes.push_back({.batch = options.batch.value_or(1),
                      .heads = options.heads.value_or(1),
                      .width = options.width.value_or(64),
                      .length = length});
  }
  // The task that a model of table 1 trains on.
  if (standard) shapes.push_back({.batch = 64, .heads = 4, .width = 16, .length = 64});
  return shapes;
}

std::vector<int> thread_counts(int threads) {
  std::vector<int> counts = {1, threads, static_cast<int>(std::thread::hardware_concurrency())};
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  counts.erase(std::remove(counts.begin(), counts.end(), 0), counts.end());
  return counts;
}

void run_operators(const Options& options) {
  const std::vector<bench::Case> chosen = choose_cases(options);
  const bool sweep = is_long(chosen);
  bench::Report report;
  report.suite = sweep ? bench::kLong : options.crossover ? "crossover" : "operators";
  report.machine = bench::describe_machine();
  report.settings.dtype = options.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  report.settings.threads = options.threads;
  report.settings.repetitions = options.repetitions;
  report.settings.forward = !options.backward;
  report.settings.backward = !options.forward && (!sweep || options.backward);
  {
    const train::InterruptGuard interrupt;
    StatusLine status;
    const bool fetches = std::any_of(chosen.begin(), chosen.end(),
                                     [](const bench::Case& one) { return one.gathers(); });
    if (fetches && report.settings.forward) {
      status.show("measuring load bandwidth");
      report.levels = bench::measure_levels(thread_counts(options.threads));
    }
    const bench::Hooks hooks = {.stop = [&] { return interrupt.interrupted(); },
                                .report =
                                    [&](const std::string& what) {
                                      status.show(format_duration(status.seconds()) + "  " + what);
                                    }};
    for (const bench::Shape& shape : choose_shapes(options, sweep)) {
      if (interrupt.interrupted()) break;
      bench::measure(chosen, shape, report.settings, hooks, report.results, report.left_out);
    }
    report.seconds = status.seconds();
    report.interrupted = interrupt.interrupted();
  }
  bench::compare_with_peers(report.results);
  std::printf(
      "%s", (options.crossover ? bench::crossover_tables(report) : bench::tables(report)).c_str());
  if (!report.levels.empty()) std::printf("%s\n", bench::level_table(report.levels).c_str());
  std::printf("%s", bench::left_out_lines(report.left_out).c_str());
  std::printf("%s, %s, %d thread%s, medians of %s time; took %s.\n",
              report.machine["cpu"].get<std::string>().c_str(), options.dtype.c_str(),
              options.threads, options.threads == 1 ? "" : "s",
              options.threads == 1 ? "CPU" : "wall", format_duration(report.seconds).c_str());
  std::fflush(stdout);
  // Write the JSON before the plot, so that a failing plot loses no measurements. Without results,
  // keep an older file.
  const bool nothing = report.interrupted && report.results.empty();
  if (!options.json.empty() && !nothing)
    write_file(options.json, bench::to_json(report).dump(1) + "\n");
  if (!options.plot.empty() && !nothing) bench::plot_report(report, sweep, options.plot);
  if (report.interrupted) {
    std::fprintf(stderr, "stopped; only whole lengths are shown\n");
    throw CLI::RuntimeError(kInterrupted);
  }
}

// Four rows of table 1, on the column of multi-hop recall.
std::vector<bench::TrainingCase> table1_cells() {
  const std::filesystem::path file =
      std::filesystem::path(HOPMIX_CONFIG_DIR) / "reproduce" / "table1.toml";
  const train::Sweep sweep = train::read_sweep(file);
  std::vector<bench::TrainingCase> chosen;
  for (const train::Cell& cell : train::make_cells(sweep, /*seeds=*/1, "", {})) {
    const std::string& row = sweep.rows[cell.row].name;
    const bool wanted =
        row == "attention" || row == "dense recurrence" || row == "2^k" || row == "k^2+1";
    if (wanted && sweep.columns[cell.column].name == "multi-hop") {
      chosen.push_back({row, cell.config});
    }
  }
  return chosen;
}

// measure(settings, hooks) returns results and table(results) the text to print; --json writes
// them under `key`.
template <typename Measure, typename Table>
void run_alone(const Options& options, const char* suite, const char* key, const Measure& measure,
               const Table& table) {
  nlohmann::ordered_json json = {{"suite", suite},
                                 {"machine", bench::describe_machine()},
                                 {"settings", {{"threads", options.threads}}},
                                 {key, nlohmann::ordered_json::array()}};
  bench::Settings settings;
  settings.threads = options.threads;
  settings.repetitions = options.repetitions;
  decltype(measure(settings, bench::Hooks())) results;
  bool interrupted = false;
  {
    const train::InterruptGuard interrupt;
    StatusLine status;
    const auto report = [&](const std::string& what) {
      status.show(format_duration(status.seconds()) + "  " + what);
    };
    results = measure(
        settings, bench::Hooks{.stop = [&] { return interrupt.interrupted(); }, .report = report});
    interrupted = interrupt.interrupted();
  }
  std::printf("%s", table(results).c_str());
  for (const auto& result : results) json[key].push_back(bench::to_json(result));
  if (interrupted) {
    std::fprintf(stderr, "stopped\n");
    throw CLI::RuntimeError(kInterrupted);
  }
  if (!options.json.empty()) write_file(options.json, json.dump(1) + "\n");
}

void run_training(const Options& options) {
  run_alone(
      options, kTraining, "training",
      [](const bench::Settings& settings, const bench::Hooks& hooks) {
        return bench::measure_training(table1_cells(), settings, hooks);
      },
      bench::training_tables);
}

void run_products(const Options& options) {
  run_alone(options, kProducts, "products", bench::measure_gemm, bench::gemm_table);
}

// Fails early on an output that cannot be written or drawn, before minutes of work.
void check_outputs(const Options& options) {
  if (!options.plot.empty() && !options.plot.ends_with(".svg") && !options.plot.ends_with(".png")) {
    throw Error("plot file '" + options.plot + "' must end in .svg or .png");
  }
  if (!options.json.empty() && options.json == options.plot) {
    throw Error("--json and --plot must differ, but both are '" + options.json + "'");
  }
  for (const std::string& file : {options.json, options.plot}) {
    const std::filesystem::path folder = std::filesystem::path(file).parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder)) {
      throw Error("cannot write '" + file + "': '" + folder.string() + "' is not a folder");
    }
  }
}

// A plot needs two lengths; a crossover also needs the attention peer.
void check_lines(const Options& options, const std::vector<bench::Case>& chosen) {
  std::set<int64_t> lengths;
  for (const bench::Shape& shape : choose_shapes(options, is_long(chosen))) {
    lengths.insert(shape.length);
  }
  for (const auto& [given, name] :
       {std::pair(!options.plot.empty(), "--plot"), std::pair(options.crossover, "--crossover")}) {
    if (given && lengths.size() < 2) {
      throw Error(std::string(name) + " needs two lengths or more, but --length is " +
                  std::to_string(*lengths.begin()));
    }
  }
  if (options.crossover && !has_name(chosen, bench::kAttention)) {
    throw Error(std::string("--crossover compares with '") + bench::kAttention +
                "', which is not timed with --no-peers or '" + bench::kLong + "'");
  }
}

// Whether `name` was requested. It must be timed alone and accepts only the options `used`.
bool is_alone(const CLI::App& command, const Options& options, const std::string& name,
              const std::set<std::string>& used) {
  const auto& names = options.names;
  if (std::find(names.begin(), names.end(), name) == names.end()) return false;
  if (names.size() > 1) {
    throw Error("benchmark '" + name + "' must be timed alone, without '" +
                (names[0] == name ? names[1] : names[0]) + "'");
  }
  for (const CLI::Option* option : command.get_options()) {
    const std::string given = option->get_name();
    if (option->count() > 0 && given != "NAME" && !used.contains(given)) {
      throw Error("benchmark '" + name + "' does not accept " + given);
    }
  }
  return true;
}

void run_decoding(const Options& options) {
  bench::DecodeShape shape;
  shape.heads = options.heads.value_or(shape.heads);
  shape.width = options.width.value_or(shape.width);
  const std::set<int64_t> lengths(options.lengths.begin(), options.lengths.end());
  shape.lengths.assign(lengths.begin(), lengths.end());
  if (lengths.empty()) {
    shape.lengths = powers(1024, bench::kLongestFull, 4);
    shape.lengths.push_back(int64_t{1} << 20);
  }
  if (!options.plot.empty() && shape.lengths.size() < 2) {
    throw Error("--plot needs two lengths or more, but --length is " +
                std::to_string(shape.lengths.front()));
  }
  bench::Settings settings;
  settings.threads = options.threads;
  settings.repetitions = options.repetitions;
  run_bench_decode(shape, settings, options.json, options.plot);
}

void run_bench(const CLI::App& command, const Options& options) {
  if (options.list) return print_list();
  check_outputs(options);
  if (is_alone(command, options, kTraining, {"--threads", "--repetitions", "--json"})) {
    return run_training(options);
  }
  if (is_alone(command, options, kProducts, {"--repetitions", "--json"})) {
    return run_products(options);
  }
  if (is_alone(
          command, options, kDecoding,
          {"--threads", "--repetitions", "--json", "--plot", "--length", "--heads", "--width"})) {
    return run_decoding(options);
  }
  check_lines(options, choose_cases(options));
  run_operators(options);
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "bench", "Benchmark the operators against PyTorch's: time, bandwidth, memory");
  const auto options = std::make_shared<Options>();
  command->add_option("NAME", options->names, "Benchmarks or groups (see --list)");
  command->add_flag("--list", options->list, "List all benchmarks");
  command->add_option("--length", options->lengths, "Tokens, as in --length 256,4096")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command->add_option("--batch", options->batch, "Sequences (1)")->check(CLI::Range(1, 1 << 16));
  command->add_option("--heads", options->heads, "Heads (1)")->check(CLI::Range(1, 1 << 12));
  command->add_option("--width", options->width, "Width of a head (64)")
      ->check(CLI::Range(1, 1 << 12));
  command->add_option("--dtype", options->dtype, "Type of the inputs")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads; more than one measures wall time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--repetitions", options->repetitions,
                   "Repetitions of each benchmark (11, fewer if slow)")
      ->check(CLI::Range(1, 10'000));
  CLI::Option* forward =
      command->add_flag("--forward", options->forward, "Time the forward pass only");
  command->add_flag("--backward", options->backward, "Time forward and backward together only")
      ->excludes(forward);
  command->add_flag("--crossover", options->crossover,
                    "Sweep lengths 64, 128, ... 8192 and report where each overtakes attention");
  command->add_flag("--no-peers", options->no_peers, "Leave out PyTorch's own operators");
  command->add_option("--json", options->json, "Write all results as JSON")->type_name("FILE");
  command
      ->add_option("--plot", options->plot,
                   "Plot time per token against length, .svg or .png (needs gnuplot)")
      ->type_name("FILE");
  command->footer(
      "By default each benchmark runs at B 1, H 1, D 64 and T 256, 1024, 4096, and at the shape\n"
      "of a model of table 1. Repetitions are interleaved at random; ratios compare with the\n"
      "peers at the same shape.\n"
      "useful GB/s: one row of k and one of z per read of the pattern, over the time; of loads,\n"
      "of rows: as a share of what plain loads reach in the cache that holds them, in order and\n"
      "in random 512-byte rows. A pattern that rereads rows may exceed 100%.\n"
      "memory: peak allocation beyond inputs and outputs; n x n: the same in T x T matrices,\n"
      "one per head.\n"
      "decode: one step of one sequence, 4 heads of 16, with a context of 1024 to 2^20 tokens\n"
      "(--length; up to 65536 for layers that keep every token), and the bytes of the state.\n\n"
      "Examples:\n"
      "  hopmix bench\n"
      "  hopmix bench 'glr_attention k^2+1' --length 1024 --repetitions 20\n"
      "  hopmix bench --crossover --plot crossover.svg\n"
      "  hopmix bench train\n"
      "  hopmix bench gemm\n"
      "  hopmix bench decode --json decode.json --plot decode.svg\n"
      "  hopmix bench decode --heads 4 --width 64 --length 1024,65536\n"
      "  hopmix bench long --json long.json --plot long.svg\n"
      "  hopmix bench glr_attention linear_recurrence --dtype bfloat16 --threads 2 --forward");
  command->callback([command, options] { run_bench(*command, *options); });
}

}  // namespace hopmix::cli

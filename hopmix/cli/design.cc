#include "hopmix/analysis/design.h"

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "hopmix/analysis/gnuplot.h"
#include "hopmix/analysis/pareto_plot.h"
#include "hopmix/base/status_line.h"
#include "hopmix/base/text_table.h"
#include "hopmix/cli/commands.h"
#include "hopmix/train/interrupt.h"

namespace hopmix::cli {
namespace {

constexpr int kInterrupted = 130;

struct Options {
  DesignOptions design;
  double seconds = 0;  // 0: no limit
  bool json = false;
};

nlohmann::ordered_json to_json(const Design& design, const Options& options) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const DesignPoint& point : design.points) {
    nlohmann::ordered_json json = {{"pattern", point.spec},    {"reference", point.reference},
                                   {"within", point.within},   {"front", point.front},
                                   {"reads_max", point.reads}, {"cache_peak", point.cache},
                                   {"diameter", nullptr},      {"mean_hops", nullptr}};
    if (point.diameter) json["diameter"] = *point.diameter;
    if (point.mean_hops) json["mean_hops"] = *point.mean_hops;
    if (point.congestion && point.congestion->fractional) {
      json["congestion"] = {{"fractional", *point.congestion->fractional},
                            {"proven", point.congestion->proven}};
    }
    if (point.beaten_by) json["beaten_by"] = design.points[*point.beaten_by].spec;
    points.push_back(json);
  }
  const DesignOptions& asked = options.design;
  return {{"n", asked.n},
          {"reads", asked.reads ? nlohmann::ordered_json(*asked.reads) : nullptr},
          {"cache", asked.cache ? nlohmann::ordered_json(*asked.cache) : nullptr},
          {"minimize", asked.minimize == Objective::kHops ? "hops" : "congestion"},
          {"seed", asked.seed},
          {"evaluations", design.evaluations},
          {"stopped", design.stopped},
          {"points", points}};
}

void print_table(const Design& design, const Options& options) {
  const bool congested = options.design.minimize == Objective::kCongestion;
  std::vector<std::string> head = {"", "reads", "cache", "diameter", "hops"};
  if (congested) head.push_back("congestion");
  head.push_back("pattern");
  std::vector<bool> left(head.size());
  left.front() = left.back() = true;
  std::vector<std::vector<std::string>> rows;
  for (const DesignPoint& point : design.points) {
    if (!point.reference && !point.front) continue;
    std::string mark = point.front && point.within ? "front" : "";
    if (point.reference) mark += std::string(mark.empty() ? "" : ", ") + "known";
    if (!point.within) mark += ", over";
    std::vector<std::string> row = {mark, std::to_string(point.reads), std::to_string(point.cache),
                                    point.diameter ? std::to_string(*point.diameter) : "none",
                                    point.mean_hops ? fixed(*point.mean_hops, 3) : "none"};
    if (congested) {
      const Congestion& known = *point.congestion;
      row.push_back(!known.fractional
                        ? "none"
                        : fixed(*known.fractional, 3) +
                              (known.gap > 0 ? " (-" + fixed(100 * known.gap, 1) + "%)" : ""));
    }
    row.push_back(point.spec);
    rows.push_back(row);
  }
  std::printf("%s\n", text_table(head, rows, left).c_str());

  for (const DesignPoint& point : design.points) {
    if (!point.reference || !point.within) continue;
    if (point.beaten_by) {
      const DesignPoint& better = design.points[*point.beaten_by];
      std::printf("%s is beaten, with %lld reads and %lld cached, by %s\n", point.spec.c_str(),
                  static_cast<long long>(better.reads), static_cast<long long>(better.cache),
                  better.spec.c_str());
    } else {
      std::printf("%s is not beaten by any pattern found\n", point.spec.c_str());
    }
  }
  std::printf(
      "%lld patterns scored%s. reads: the largest row; front: Pareto-optimal in reads, cache and "
      "objective; known: from a paper; over: over the limits.\n",
      static_cast<long long>(design.evaluations), design.stopped ? ", stopped before the end" : "");
}

void run_design(const Options& options) {
  Design found;
  bool interrupted = false;
  {
    const train::InterruptGuard interrupt;
    StatusLine status;
    DesignOptions settings = options.design;
    settings.progress = [&](const DesignProgress& progress) {
      status.show("limits " + std::to_string(progress.cell) + "/" + std::to_string(progress.cells) +
                  "  " + progress.best);
      return !interrupt.interrupted() &&
             (options.seconds == 0 || status.seconds() < options.seconds);
    };
    found = design(settings);
    interrupted = interrupt.interrupted();
  }
  if (options.json) {
    std::printf("%s\n", to_json(found, options).dump(2).c_str());
  } else {
    print_table(found, options);
  }
  if (interrupted) throw CLI::RuntimeError(kInterrupted);
}

}  // namespace

void add_design(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "design", "Search patterns for few hops or little congestion within limits");
  const auto options = std::make_shared<Options>();
  DesignOptions& design = options->design;
  command->add_option("-n", design.n, "Tokens")->capture_default_str();
  command->add_option("--reads", design.reads, "Most reads per token");
  command->add_option("--cache", design.cache, "Most tokens in the cache");
  command->add_option("--minimize", design.minimize, "What to minimize: mean hops or congestion")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Objective>{
          {"hops", Objective::kHops}, {"congestion", Objective::kCongestion}}))
      ->default_str("hops")
      ->option_text("hops|congestion [hops]");
  command->add_option("--seed", design.seed, "Seed; the same seed gives the same patterns")
      ->capture_default_str();
  command
      ->add_option("--evaluations", design.evaluations,
                   "Patterns scored per pair of limits and family (20 times as many offset sets)")
      ->capture_default_str();
  command
      ->add_option("--time", options->seconds,
                   "Stop after this many seconds; results then vary between runs")
      ->check(CLI::PositiveNumber)
      ->type_name("SECONDS");
  command->add_flag("--json", options->json,
                    "Print JSON, including points that are not on the front");
  command->footer(
      "The search also covers smaller limits, and the limits of each known pattern within them. "
      "Every result is a spec that\n`hopmix train` accepts. Ctrl-C prints the best so far.\n\n"
      "Examples:\n"
      "  hopmix design -n 1024 --reads 12 --cache 16\n"
      "  hopmix design -n 1024 --reads 32 --evaluations 2000 --seed 1 --json\n"
      "  hopmix design -n 256 --cache 32 --minimize congestion --time 60");
  command->callback([options] { run_design(*options); });
}

}  // namespace hopmix::cli

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "hopmix/analysis/gnuplot.h"
#include "hopmix/analysis/pareto_plot.h"
#include "hopmix/analysis/summary.h"
#include "hopmix/base/status_line.h"
#include "hopmix/base/text_table.h"
#include "hopmix/cli/commands.h"
#include "hopmix/train/interrupt.h"

namespace hopmix::cli {
namespace {

constexpr int kInterrupted = 130;
constexpr size_t kLongestLabel = 28;

struct Options {
  std::vector<std::string> specs;
  int64_t n = 1024;
  bool json = false, no_congestion = false;
  double gap = 0.02;
  int64_t sources = 64;
  uint64_t seed = 0;
  std::string plot;
};

nlohmann::ordered_json growth_json(const std::optional<Growth>& growth) {
  return growth ? nlohmann::ordered_json(growth->text()) : nullptr;
}

nlohmann::ordered_json to_json(const Summary& summary) {
  nlohmann::ordered_json json = {{"pattern", summary.spec},
                                 {"n", summary.n},
                                 {"reads_total", summary.reads_total},
                                 {"reads_max", summary.reads_max},
                                 {"cache_peak", summary.cache_peak},
                                 {"diameter", nullptr},
                                 {"mean_hops", nullptr},
                                 {"congestion", nullptr}};
  if (summary.diameter) json["diameter"] = *summary.diameter;
  if (summary.mean_hops) json["mean_hops"] = *summary.mean_hops;
  if (summary.sources > 0) {
    json["sampled"] = {{"sources", summary.sources}, {"half_width", summary.half_width}};
  }
  if (const auto& known = summary.congestion) {
    nlohmann::ordered_json& routing = json["congestion"];
    routing = {{"lower", nullptr}, {"cut", nullptr}, {"fractional", nullptr}, {"upper", nullptr}};
    if (known->reachable) {
      routing["lower"] = known->lower;
      routing["cut"] = known->cut;
      if (known->fractional) routing["fractional"] = *known->fractional;
      if (known->upper) routing["upper"] = *known->upper;
      routing["proven"] = known->proven;
      if (known->fractional) routing["gap"] = known->gap;
    }
  }
  json["growth"] = {{"reads", growth_json(summary.reads_growth)},
                    {"cache", growth_json(summary.cache_growth)},
                    {"mean_hops", growth_json(summary.hops_growth)}};
  return json;
}

double reads_per_token(const Summary& summary) {
  return summary.n > 0 ? static_cast<double>(summary.reads_total) / static_cast<double>(summary.n)
                       : 0;
}

std::string growth_text(const std::optional<Growth>& growth) {
  return growth ? growth->text() : "-";
}

std::vector<std::string> to_row(const Summary& summary, bool with_congestion) {
  std::vector<std::string> row = {summary.spec,
                                  fixed(reads_per_token(summary), 2),
                                  std::to_string(summary.reads_max),
                                  growth_text(summary.reads_growth),
                                  std::to_string(summary.cache_peak),
                                  growth_text(summary.cache_growth)};
  if (!summary.connected) {
    row.insert(row.end(), {"none", "none", "-"});
  } else {
    const bool sampled = summary.sources > 0;
    row.push_back((sampled ? ">= " : "") + std::to_string(summary.diameter.value_or(0)));
    row.push_back(fixed(summary.mean_hops.value_or(0), 2) +
                  (sampled ? "+-" + fixed(summary.half_width, 2) : ""));
    row.push_back(growth_text(summary.hops_growth));
  }
  if (!with_congestion) return row;
  const std::optional<Congestion>& known = summary.congestion;
  if (!known || !known->reachable) {
    row.insert(row.end(), {"none", "none", "none", "none"});
    return row;
  }
  row.push_back(fixed(known->lower, 2));
  row.push_back(fixed(known->cut, 2));
  std::string fractional = "-";
  if (known->fractional) {
    fractional = fixed(*known->fractional, 3);
    if (known->gap > 0) fractional += " (-" + fixed(100 * known->gap, 1) + "%)";
  }
  row.push_back(fractional);
  row.push_back(known->upper ? std::to_string(*known->upper) : "-");
  return row;
}

void print_table(const std::vector<Summary>& summaries, const Options& options) {
  std::vector<std::string> head = {"pattern", "reads/token", "max",  "growth", "cache",
                                   "growth",  "diameter",    "hops", "growth"};
  if (!options.no_congestion) {
    head.insert(head.end(), {"C: lower", "cut", "fractional", "upper"});
  }
  std::vector<std::vector<std::string>> rows;
  bool apart = false, sampled = false, gap = false;
  for (const Summary& summary : summaries) {
    rows.push_back(to_row(summary, !options.no_congestion));
    apart |= !summary.connected;
    sampled |= summary.sources > 0;
    gap |= summary.congestion && summary.congestion->gap > 0;
  }
  std::printf("%s\n%lld tokens. hops: mean over all pairs j < i", text_table(head, rows).c_str(),
              static_cast<long long>(options.n));
  if (!options.no_congestion) {
    std::printf("; C: congestion of copying %lld inputs", static_cast<long long>(options.n / 2));
  }
  std::printf(".\n");
  if (apart)
    std::printf(
        "none: some token has no path to an earlier token, or some output no path to its input.\n");
  if (sampled) {
    std::printf("+-: hops from %lld sampled tokens, 95%% confidence.\n",
                static_cast<long long>(options.sources));
  }
  if (gap) std::printf("(-x%%): the optimum is at most x%% lower.\n");
}

void draw(const std::vector<Summary>& summaries, const Options& options) {
  std::vector<PlottedPattern> points;
  for (const Summary& summary : summaries) {
    PlottedPattern point;
    point.label = summary.spec.size() <= kLongestLabel
                      ? summary.spec
                      : summary.spec.substr(0, kLongestLabel - 3) + "...";
    point.reads = reads_per_token(summary);
    point.cache = static_cast<double>(summary.cache_peak);
    point.mean_hops = summary.mean_hops;
    if (summary.congestion) point.congestion = summary.congestion->fractional;
    points.push_back(point);
  }
  plot(pareto_script(points, std::to_string(options.n) + " tokens"), options.plot,
       pareto_width(points), kParetoHeight);
}

void run_compare(const Options& options) {
  std::vector<Summary> summaries;
  bool stopped = false;
  {
    const train::InterruptGuard interrupt;
    StatusLine status;
    for (const std::string& spec : options.specs) {
      SummaryOptions settings;
      settings.congestion = !options.no_congestion;
      settings.routing.gap = options.gap;
      settings.sources = options.sources;
      settings.seed = settings.routing.seed = options.seed;
      settings.progress = [&](const std::string& what) {
        status.show(spec + ": " + what);
        return !interrupt.interrupted();
      };
      Summary summary = summarize(spec, options.n, settings);
      stopped = interrupt.interrupted();
      if (stopped) break;  // its numbers are incomplete
      summaries.push_back(std::move(summary));
    }
  }
  if (options.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Summary& summary : summaries) list.push_back(to_json(summary));
    std::printf("%s\n", list.dump(2).c_str());
  } else {
    print_table(summaries, options);
  }
  if (stopped) {
    std::fprintf(stderr, "stopped: %zu of %zu patterns\n", summaries.size(), options.specs.size());
    throw CLI::RuntimeError(kInterrupted);
  }
  // Plot last, so that a failing plot loses no results.
  if (!options.plot.empty()) draw(summaries, options);
}

}  // namespace

void add_compare(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("compare", "Compare patterns: reads, cache, hops, congestion");
  const auto options = std::make_shared<Options>();
  command->add_option("SPEC", options->specs, "Patterns (see hopmix pattern --help)")->required();
  command->add_option("-n", options->n, "Tokens; congestion copies half of them")
      ->check(CLI::Range(int64_t{2}, (int64_t{1} << 31) - 1))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
  command->add_flag("--no-congestion", options->no_congestion, "Skip congestion, the slow part");
  command
      ->add_option("--gap", options->gap,
                   "Relative gap at which the congestion search stops, past 128 inputs")
      ->capture_default_str();
  command
      ->add_option("--sources", options->sources,
                   "Tokens to sample hops from, when there are more than 16384")
      ->check(CLI::Range(2, 1'000'000))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the samples and searches")
      ->capture_default_str();
  command
      ->add_option("--plot", options->plot,
                   "Plot hops and congestion against reads, .svg or .png (needs gnuplot)")
      ->type_name("FILE");
  command->footer(
      "Congestion: lower and cut are bounds, fractional is the optimum when paths may be split, "
      "upper "
      "a routing found.\nPast 4096 tokens only the bounds are computed.\n\n"
      "Examples:\n"
      "  hopmix compare '2^k' 'k^2+1' 'cached(2^k)' 'cached(k^2+1)' -n 256\n"
      "  hopmix compare dense 'window(8)' fenwick fib -n 65536 --no-congestion\n"
      "  hopmix compare '2^k' 'cached(2^k)' 'window(16)' -n 128 --json --plot pareto.svg");
  command->callback([options] { run_compare(*options); });
}

}  // namespace hopmix::cli

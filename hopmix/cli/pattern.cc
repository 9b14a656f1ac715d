#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "hopmix/analysis/cost.h"
#include "hopmix/analysis/gnuplot.h"
#include "hopmix/analysis/graphviz.h"
#include "hopmix/analysis/hops.h"
#include "hopmix/analysis/render.h"
#include "hopmix/base/error.h"
#include "hopmix/base/files.h"
#include "hopmix/cli/commands.h"
#include "hopmix/pattern/matrix_market.h"

namespace hopmix::cli {
namespace {

// Beyond this many tokens, hops of a pattern without offsets would take minutes; skip them.
constexpr int64_t kMaxSearched = 32768;
constexpr int kPlotPixels = 800, kCurveHeight = 450;
constexpr int64_t kMostNodes = 512;  // of a graph that dot lays out in seconds

struct Options {
  std::string spec;
  int64_t n = 64;
  bool stats = false;
  bool json = false;
  std::string plot, plot_cache, plot_hops, graph, dot, csr;
  bool draws() const {
    return !plot.empty() || !plot_cache.empty() || !plot_hops.empty() || !graph.empty() ||
           !dot.empty() || !csr.empty();
  }
};

std::optional<Hops> affordable_hops(const Pattern& pattern) {
  if (pattern.offsets().empty() && pattern.size() > kMaxSearched) return std::nullopt;
  return hops(pattern);
}

nlohmann::ordered_json to_json(const Pattern& pattern, const Cost& spent,
                               const std::optional<Hops>& reach) {
  nlohmann::ordered_json json = {{"pattern", pattern.spec()},
                                 {"n", pattern.size()},
                                 {"reads_total", spent.reads_total},
                                 {"reads_max", spent.reads_max},
                                 {"cache_peak", spent.cache_peak},
                                 {"diameter", nullptr},
                                 {"mean_hops", nullptr},
                                 {"unreachable", nullptr}};
  if (!reach) return json;
  if (reach->diameter) json["diameter"] = *reach->diameter;
  if (reach->mean) json["mean_hops"] = *reach->mean;
  json["unreachable"] = reach->unreachable;
  return json;
}

// "8 at most, 3.65 on average", or the reason there is no number.
std::string describe(const std::optional<Hops>& reach) {
  if (!reach) return "not computed beyond " + std::to_string(kMaxSearched) + " tokens";
  if (!reach->diameter)
    return "unbounded, " + std::to_string(reach->unreachable) + " pairs have no path";
  char text[80];
  std::snprintf(text, sizeof text, "%lld at most, %.2f on average",
                static_cast<long long>(*reach->diameter), *reach->mean);
  return text;
}

double reads_per_token(const Pattern& pattern, const Cost& spent) {
  return pattern.size() == 0
             ? 0
             : static_cast<double>(spent.reads_total) / static_cast<double>(pattern.size());
}

void print_stats(const Pattern& pattern, const Cost& spent, const std::optional<Hops>& reach) {
  std::printf("pattern       %s\n", pattern.spec().c_str());
  std::printf("tokens        %lld\n", static_cast<long long>(pattern.size()));
  std::printf("reads         %lld, %.2f per token, %lld at most\n",
              static_cast<long long>(spent.reads_total), reads_per_token(pattern, spent),
              static_cast<long long>(spent.reads_max));
  std::printf("cache         %lld tokens at most\n", static_cast<long long>(spent.cache_peak));
  std::printf("hops          %s\n", describe(reach).c_str());
}

void print_matrix(const Pattern& pattern) {
  const Cost spent = cost(pattern);
  std::printf(
      "%s%s, %lld tokens: %.2f reads per token (%lld at most); cache %lld at most; hops %s\n",
      terminal_matrix(pattern).c_str(), pattern.spec().c_str(),
      static_cast<long long>(pattern.size()), reads_per_token(pattern, spent),
      static_cast<long long>(spent.reads_max), static_cast<long long>(spent.cache_peak),
      describe(affordable_hops(pattern)).c_str());
}

void run_pattern(const Options& options) {
  const Pattern pattern(options.spec, options.n);
  if (!options.plot.empty()) plot(matrix_script(pattern), options.plot, kPlotPixels, kPlotPixels);
  if (!options.plot_cache.empty()) {
    plot(cache_script(pattern), options.plot_cache, kPlotPixels, kCurveHeight);
  }
  if (!options.plot_hops.empty()) {
    plot(hops_script(pattern), options.plot_hops, kPlotPixels, kPlotPixels);
  }
  if (!options.graph.empty()) {
    if (pattern.size() > kMostNodes) {
      throw Error("n " + std::to_string(pattern.size()) + " must be at most " +
                  std::to_string(kMostNodes) + " for --graph; --dot has no limit");
    }
    draw_graph(graphviz(pattern), options.graph);
  }
  if (!options.dot.empty()) write_file(options.dot, graphviz(pattern));
  if (!options.csr.empty()) write_matrix_market(options.csr, to_csr(pattern));
  if (options.json || options.stats) {
    const Cost spent = cost(pattern);
    const std::optional<Hops> reach = affordable_hops(pattern);
    if (options.json) {
      std::printf("%s\n", to_json(pattern, spent, reach).dump(2).c_str());
    } else {
      print_stats(pattern, spent, reach);
    }
  } else if (!options.draws()) {
    print_matrix(pattern);
  }
}

}  // namespace

void add_pattern(CLI::App& app) {
  CLI::App* command = app.add_subcommand("pattern", "Print, measure or draw a pattern");
  const auto options = std::make_shared<Options>();
  command
      ->add_option("SPEC", options->spec, "Pattern, such as '2^k' or 'cached(k^2+1) | global(4)'")
      ->required();
  command->add_option("-n", options->n, "Tokens")->capture_default_str();
  command->add_flag("--stats", options->stats, "Print reads, cache and hops instead of the matrix");
  command->add_flag("--json", options->json, "Print the statistics as JSON");
  command->add_option("--plot", options->plot, "Plot the matrix, .svg or .png (needs gnuplot)")
      ->type_name("FILE");
  command
      ->add_option("--plot-cache", options->plot_cache,
                   "Plot the cache size over time, .svg or .png (needs gnuplot)")
      ->type_name("FILE");
  command
      ->add_option("--plot-hops", options->plot_hops,
                   "Plot hops between tokens as a heat map, .svg or .png (needs gnuplot)")
      ->type_name("FILE");
  command
      ->add_option("--graph", options->graph,
                   "Draw the graph of reads, .svg or .png (needs Graphviz); up to 512 tokens")
      ->type_name("FILE");
  command->add_option("--dot", options->dot, "Write the graph of reads in Graphviz's language")
      ->type_name("FILE");
  command
      ->add_option("--csr", options->csr,
                   "Write the reads as a Matrix Market file that dag(FILE) accepts")
      ->type_name("FILE");
  command->footer(
      "Patterns, joined by |: dense, window(w), an increasing expression in k (2^k, k^2+1), "
      "offsets(1,2,5), fib,\n"
      "nlogn, cached(P), strided(s), global(g), blocks(b), random(r,seed), fenwick, dag(file).\n\n"
      "Examples:\n"
      "  hopmix pattern '2^k' -n 64\n"
      "  hopmix pattern 'cached(k^2+1)' -n 300 --stats\n"
      "  hopmix pattern 'window(8) | global(4)' -n 1024 --stats --json\n"
      "  hopmix pattern 'cached(2^k)' -n 128 --plot cached.svg\n"
      "  hopmix pattern 'cached(2^k)' -n 256 --plot-cache cache.svg --plot-hops hops.png\n"
      "  hopmix pattern fenwick -n 16 --graph fenwick.svg");
  command->callback([options] { run_pattern(*options); });
}

}  // namespace hopmix::cli

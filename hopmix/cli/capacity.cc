#include "hopmix/analysis/capacity.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "hopmix/base/error.h"
#include "hopmix/base/text_table.h"
#include "hopmix/cli/commands.h"

namespace hopmix::cli {
namespace {

struct Options {
  int64_t precision = 16, width = 64, layers = 3, kappa = 32, functions = 5;
  std::vector<std::string> widths;
  bool json = false;
};

struct Block {
  std::string name, formula;
  double capacity;
  int64_t hops;
};

std::vector<int64_t> parse_widths(const std::string& text) {
  std::vector<int64_t> widths;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, comma - at);
    size_t read = 0;
    try {
      widths.push_back(std::stoll(word, &read));
    } catch (const std::exception&) {
      read = 0;
    }
    if (word.empty() || read != word.size()) {
      throw Error("widths '" + text + "' must be comma-separated whole numbers, such as 8,1,1,1");
    }
    at = comma + 1;
  }
  return widths;
}

std::vector<Block> make_blocks(const Options& options) {
  const auto topk = [&](const std::string& name, int64_t kappa) {
    return Block{name, "p d (L + kappa + 1)",
                 topk_capacity(options.precision, options.width, options.layers, kappa), 1};
  };
  std::vector<Block> blocks = {
      topk("conventional hybrid (kappa = 0)", 0),
      topk("top-" + std::to_string(options.kappa) + " access", options.kappa)};
  for (const std::string& text : options.widths) {
    const std::vector<int64_t> widths = parse_widths(text);
    blocks.push_back({"multi-hop (" + text + ")", "p d m prod(kappa)",
                      multihop_capacity(options.precision, options.width, widths),
                      static_cast<int64_t>(widths.size())});
  }
  return blocks;
}

std::string domain_text(const std::optional<double>& domain) {
  if (!domain) return "no bound";
  char text[32];
  std::snprintf(text, sizeof text, *domain < 1e6 ? "%.0f" : "%.3g", *domain);
  return text;
}

void run_capacity(const Options& options) {
  if (options.functions < 1) {
    throw Error("functions " + std::to_string(options.functions) + " must be at least 1");
  }
  const std::vector<Block> blocks = make_blocks(options);
  if (options.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Block& block : blocks) {
      nlohmann::ordered_json domains = nlohmann::ordered_json::array();
      for (int64_t m = 1; m <= options.functions; ++m) {
        const std::optional<double> domain = largest_domain(block.capacity, m, block.hops);
        domains.push_back(
            {{"functions", m}, {"largest_n", domain ? nlohmann::ordered_json(*domain) : nullptr}});
      }
      list.push_back({{"block", block.name},
                      {"hops", block.hops},
                      {"capacity", block.capacity},
                      {"formula", block.formula},
                      {"compositions", domains}});
    }
    std::printf("%s\n", list.dump(2).c_str());
    return;
  }
  std::vector<std::string> head = {"block", "hops", "capacity (bits)", "lower bound"};
  for (int64_t m = 1; m <= options.functions; ++m) {
    head.push_back(std::to_string(m) + (m == 1 ? " function" : " functions"));
  }
  std::vector<std::vector<std::string>> rows;
  for (const Block& block : blocks) {
    std::vector<std::string> row = {block.name, std::to_string(block.hops),
                                    fixed(block.capacity, 0),
                                    "n^(1/" + std::to_string(block.hops + 1) + ")"};
    for (int64_t m = 1; m <= options.functions; ++m) {
      row.push_back(domain_text(largest_domain(block.capacity, m, block.hops)));
    }
    rows.push_back(row);
  }
  std::printf(
      "%s\nEach cell is the largest n for which the bound lets a block compose that many functions "
      "on [n].\nPrecision p = %lld bits, width d = %lld, L = %lld layers after the full attention. "
      "The bounds are asymptotic and\ntheir constants, unknown, are taken as 1: compare blocks and "
      "exponents, not thresholds.\nNo bound: constant width and log n bits are enough.\n",
      text_table(head, rows).c_str(), static_cast<long long>(options.precision),
      static_cast<long long>(options.width), static_cast<long long>(options.layers));
}

}  // namespace

void add_capacity(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "capacity", "Bound how many functions a hybrid block can compose (MURA paper)");
  const auto options = std::make_shared<Options>();
  command->add_option("--precision", options->precision, "Bits per number")->capture_default_str();
  command->add_option("--width", options->width, "Model width")->capture_default_str();
  command->add_option("--layers", options->layers, "Layers after the full attention")
      ->capture_default_str();
  command->add_option("--kappa", options->kappa, "Entries retrieved by a top-kappa access layer")
      ->capture_default_str();
  command
      ->add_option("--widths", options->widths,
                   "Retrieval widths of a multi-hop block, such as 8,1,1,1; may be repeated "
                   "[32 16,1 11,1,1 8,1,1,1]")
      ->type_name("K1,K2,...");
  command
      ->add_option("--functions", options->functions,
                   "Largest number of composed functions to show")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Capacity is p d (L + kappa + 1) with top-kappa access and p d m prod(kappa) with m hops. It "
      "must be at least\nsqrt(n) to compose two functions, and n^(1/(m+1)) to compose m+1 "
      "functions "
      "with m hops.\n\n"
      "Examples:\n"
      "  hopmix capacity\n"
      "  hopmix capacity --precision 8 --width 256 --kappa 64 --widths 64 --widths 16,1 --json");
  command->callback([options] {
    if (options->widths.empty()) options->widths = {"32", "16,1", "11,1,1", "8,1,1,1"};
    run_capacity(*options);
  });
}

}  // namespace hopmix::cli

#include "hopmix/tasks/function_composition.h"

#include <vector>

#include "hopmix/tasks/rows.h"

namespace hopmix::tasks {
namespace {

constexpr uint64_t kSizeStream = ~uint64_t{0};  // a stream of the seed that no row uses
constexpr int64_t kNumbers = 3;                 // numbers per token: value, function, index

void fill(const FunctionCompositionConfig& config, int64_t n, Rng& rng, const Row& row) {
  const int64_t first_label = rng.below(config.labels - config.functions + 1);
  const int64_t readouts = config.functions - 1;
  std::vector<int64_t> f(static_cast<size_t>(config.functions * n));  // f[i n + j] = f_i(j)
  for (int64_t& value : f) value = rng.below(n);
  for (int64_t i = 0; i < config.functions; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = i * n + j;
      int64_t value = f[static_cast<size_t>(at)];
      int64_t* token = &row.tokens[static_cast<size_t>(at * kNumbers)];
      token[0] = value;
      token[1] = first_label + i;
      token[2] = j;
      for (int64_t m = 1; m <= i; ++m) {
        value = f[static_cast<size_t>((i - m) * n + value)];
        const auto asked = static_cast<size_t>(at * readouts + m - 1);
        row.targets[asked] = value;
        row.slices[asked] = m;
      }
    }
  }
}

}  // namespace

Task function_composition_task(const FunctionCompositionConfig& given, const std::string& where) {
  FunctionCompositionConfig config = given;
  check_range(where + "functions", config.functions, 2, 1024);
  check_range(where + "most_n", config.most_n, 2, kMaxLength / config.functions);
  check_range(where + "least_n", config.least_n, 2, config.most_n, ", most_n");
  if (config.labels == 0) config.labels = config.functions;
  check_range(where + "labels", config.labels, config.functions, kMaxLength,
              "; 0 means one per function");
  return {.name = "function_composition",
          .vocabulary = config.most_n,
          .length = config.functions * config.most_n,
          .slice_name = "composed",
          .chance = 100.0 / static_cast<double>(config.most_n),
          .fields = {{.name = "function", .size = config.labels},
                     {.name = "index", .size = config.most_n, .of_tokens = true}},
          .readouts = config.functions - 1,
          .sample = [config](int64_t batch, uint64_t seed) {
            const int64_t n =
                config.least_n + Rng(seed, kSizeStream).below(config.most_n - config.least_n + 1);
            const auto rows = by_rows(
                config.functions * n, [&](Rng& rng, const Row& row) { fill(config, n, rng, row); },
                kNumbers, config.functions - 1);
            return rows(batch, seed);
          }};
}

TaskEntry function_composition_entry() {
  return {.info = {.name = "function_composition",
                   .description = "compose each function with the ones written before it (MURA)",
                   .keys = {{"functions", "number of functions written"},
                            {"least_n", "smallest domain"},
                            {"most_n", "largest domain, and the vocabulary"},
                            {"labels", "function names; 0 for as many as functions"}}},
          .make = [](config::Table& table) {
            FunctionCompositionConfig config;
            config.functions = table.get("functions", config.functions);
            config.least_n = table.get("least_n", config.least_n);
            config.most_n = table.get("most_n", config.most_n);
            config.labels = table.get("labels", config.labels);
            return function_composition_task(config, table.name(""));
          }};
}

}  // namespace hopmix::tasks

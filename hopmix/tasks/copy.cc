#include "hopmix/tasks/copy.h"

#include "hopmix/tasks/rows.h"

namespace hopmix::tasks {

Task copy_task(const CopyConfig& config, const std::string& where) {
  check_range(where + "symbols", config.symbols, 2, kMaxLength);
  check_range(where + "m", config.m, 1, kMaxLength / 2);

  const auto fill = [config](Rng& rng, const Row& row) {
    const size_t m = static_cast<size_t>(config.m);
    row.tokens[m] = config.symbols;
    for (size_t i = 0; i < m; ++i) {
      const int64_t symbol = rng.below(config.symbols);
      row.tokens[i] = symbol;
      row.targets[m + i] = symbol;
      if (i + 1 < m) row.tokens[m + 1 + i] = symbol;
    }
  };
  return {.name = "copy",
          .vocabulary = config.symbols + 1,
          .length = 2 * config.m,
          .slice_name = "",
          .chance = 100.0 / static_cast<double>(config.symbols),
          .sample = by_rows(2 * config.m, fill)};
}

TaskEntry copy_entry() {
  return {.info = {.name = "copy",
                   .description = "repeat m symbols after a separator",
                   .keys = {{"symbols", "size of the alphabet"}, {"m", "symbols to copy"}}},
          .make = [](config::Table& table) {
            CopyConfig config;
            config.symbols = table.get("symbols", config.symbols);
            config.m = table.get("m", config.m);
            return copy_task(config, table.name(""));
          }};
}

}  // namespace hopmix::tasks

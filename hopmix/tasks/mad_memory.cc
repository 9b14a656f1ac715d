#include "hopmix/tasks/mad_memory.h"

#include <limits>
#include <vector>

#include "hopmix/tasks/rows.h"

namespace hopmix::tasks {

Task selective_copying_task(const SelectiveCopyingConfig& config, const std::string& where) {
  check_range(where + "vocabulary", config.vocabulary, 4, kMaxLength);
  check_range(where + "m", config.m, 1, kMaxLength / 2 - 1);
  check_range(where + "length", config.length, 2 * config.m + 1, kMaxLength, ": at least 2 m + 1");
  const int64_t symbols = config.vocabulary - 2, blank = symbols, copy = symbols + 1;

  const auto fill = [config, symbols, blank, copy](Rng& rng, const Row& row) {
    const auto m = static_cast<size_t>(config.m);
    std::vector<int64_t> blanks_before(m);
    for (size_t i = 2 * m + 1; i < row.tokens.size(); ++i) {
      ++blanks_before[static_cast<size_t>(rng.below(config.m))];
    }
    std::fill(row.tokens.begin(), row.tokens.end(), blank);
    const size_t answers = row.tokens.size() - m;
    row.tokens[answers - 1] = copy;
    size_t at = 0;
    for (size_t i = 0; i < m; ++i, ++at) {
      at += static_cast<size_t>(blanks_before[i]);
      row.tokens[at] = row.targets[answers + i] = rng.below(symbols);
    }
  };
  return {.name = "selective_copying",
          .vocabulary = config.vocabulary,
          .length = config.length,
          .slice_name = "",
          .chance = 100.0 / static_cast<double>(symbols),
          .sample = by_rows(config.length, fill)};
}

Task compression_task(const CompressionConfig& config, const std::string& where) {
  check_range(where + "vocabulary", config.vocabulary, 3, kMaxLength);
  check_range(where + "m", config.m, 1, kMaxLength / 2);
  const int64_t symbols = config.vocabulary - 1;

  const auto fill = [config, symbols](Rng& rng, const Row& row) {
    const auto m = static_cast<size_t>(config.m);
    for (size_t i = 0; i < m; ++i) {
      row.tokens[i] = row.targets[m + i] = rng.below(symbols);
      row.tokens[m + i] = symbols;
    }
  };
  return {.name = "compression",
          .vocabulary = config.vocabulary,
          .length = 2 * config.m,
          .slice_name = "",
          .chance = 100.0 / static_cast<double>(symbols),
          .sample = by_rows(2 * config.m, fill)};
}

Task memorization_task(const MemorizationConfig& config, const std::string& where) {
  check_range(where + "vocabulary", config.vocabulary, 5, kMaxLength);
  check_even(where + "length", config.length, 2, kMaxLength);
  check_range(where + "map_seed", config.map_seed, 0, std::numeric_limits<int64_t>::max());
  const int64_t insert = config.vocabulary - 1, keys = insert / 2, values = insert - keys;
  Rng map_rng(static_cast<uint64_t>(config.map_seed));

  const auto fill = [insert, keys, value_of = draw_distinct(map_rng, values, keys)](
                        Rng& rng, const Row& row) {
    for (size_t i = 0; i < row.tokens.size(); i += 2) {
      const int64_t key = rng.below(keys);
      row.tokens[i] = key;
      row.tokens[i + 1] = insert;
      row.targets[i + 1] = keys + value_of[static_cast<size_t>(key)];
    }
  };
  return {.name = "memorization",
          .vocabulary = config.vocabulary,
          .length = config.length,
          .slice_name = "",
          .chance = 100.0 / static_cast<double>(values),
          .sample = by_rows(config.length, fill)};
}

TaskEntry selective_copying_entry() {
  return {.info = {.name = "selective_copying",
                   .description = "repeat, in order, the symbols found among blanks (MAD)",
                   .keys = {{"vocabulary", "symbols, a blank and a copy token"},
                            {"length", "tokens in a sequence, including blanks"},
                            {"m", "symbols to copy"}}},
          .make = [](config::Table& table) {
            SelectiveCopyingConfig config;
            config.vocabulary = table.get("vocabulary", config.vocabulary);
            config.length = table.get("length", config.length);
            config.m = table.get("m", config.m);
            return selective_copying_task(config, table.name(""));
          }};
}

TaskEntry compression_entry() {
  return {.info = {.name = "compression",
                   .description = "repeat all symbols from a compressed memory (after MAD)",
                   .keys = {{"vocabulary", "symbols and the compression token"}, {"m", "symbols"}}},
          .make = [](config::Table& table) {
            CompressionConfig config;
            config.vocabulary = table.get("vocabulary", config.vocabulary);
            config.m = table.get("m", config.m);
            return compression_task(config, table.name(""));
          }};
}

TaskEntry memorization_entry() {
  return {.info = {.name = "memorization",
                   .description = "the value of a key in a fixed, memorized mapping (MAD)",
                   .keys = {{"vocabulary", "keys, values and an insert token"},
                            {"length", "two tokens per key"},
                            {"map_seed", "seed of the mapping"}}},
          .make = [](config::Table& table) {
            MemorizationConfig config;
            config.vocabulary = table.get("vocabulary", config.vocabulary);
            config.length = table.get("length", config.length);
            config.map_seed = table.get("map_seed", config.map_seed);
            return memorization_task(config, table.name(""));
          }};
}

}  // namespace hopmix::tasks

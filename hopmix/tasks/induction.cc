#include "hopmix/tasks/induction.h"

#include <bit>
#include <vector>

#include "hopmix/tasks/rows.h"

namespace hopmix::tasks {
namespace {

// Sets the target at `at` to the symbol at `answer`.
void ask(const Row& row, size_t at, size_t answer) {
  row.targets[at] = row.tokens[answer];
  row.slices[at] = static_cast<int64_t>(std::bit_ceil(at - answer));
}

void fill_symbols(int64_t symbols, Rng& rng, const Row& row) {
  for (int64_t& token : row.tokens) token = rng.below(symbols);
}

void fill_special(int64_t symbols, Rng& rng, const Row& row) {
  fill_symbols(symbols, rng, row);
  const size_t last = row.tokens.size() - 1;
  const auto place = static_cast<size_t>(rng.below(static_cast<int64_t>(last) - 1));
  row.tokens[place] = row.tokens[last] = symbols;
  ask(row, last, place + 1);
}

void fill_bigram(int64_t symbols, Rng& rng, const Row& row) {
  fill_symbols(symbols, rng, row);
  std::vector<size_t> after(
      static_cast<size_t>(symbols));  // position after its last occurrence; 0 for none
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    size_t& answer = after[static_cast<size_t>(row.tokens[i])];
    if (answer > 0) ask(row, i, answer);
    answer = i + 1;
  }
}

}  // namespace

Task induction_task(const InductionConfig& config, const std::string& where) {
  check_choice(where + "form", config.form, {"special", "bigram"});
  const bool special = config.form == "special";
  check_range(where + "vocabulary", config.vocabulary, 3, kMaxLength);
  check_range(where + "length", config.length, special ? 3 : config.vocabulary, kMaxLength,
              special ? "" : ": with at least `vocabulary` tokens some symbol repeats");
  const int64_t symbols = config.vocabulary - 1;
  return {.name = "induction",
          .vocabulary = config.vocabulary,
          .length = config.length,
          .slice_name = "distance",
          .chance = 100.0 / static_cast<double>(symbols),
          .sample = by_rows(config.length, [symbols, special](Rng& rng, const Row& row) {
            (special ? fill_special : fill_bigram)(symbols, rng, row);
          })};
}

TaskEntry induction_entry() {
  return {
      .info = {.name = "induction",
               .description = "what followed this token last time (induction heads)",
               .keys = {{"vocabulary", "symbols, and one special token"},
                        {"length", "tokens in a sequence"},
                        {"form",
                         "special: one question, at the end; bigram: at every repeated symbol"}}},
      .make = [](config::Table& table) {
        InductionConfig config;
        config.vocabulary = table.get("vocabulary", config.vocabulary);
        config.length = table.get("length", config.length);
        config.form = table.get("form", config.form);
        return induction_task(config, table.name(""));
      }};
}

}  // namespace hopmix::tasks

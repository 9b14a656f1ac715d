#include "hopmix/tasks/mqar.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "hopmix/base/error.h"
#include "hopmix/tasks/rows.h"

namespace hopmix::tasks {
namespace {

constexpr uint64_t kSizeStream = ~uint64_t{0};  // a stream of the seed that no row uses

// Draws indices without replacement, each with probability proportional to its weight, in the order
// drawn. Exponential clocks with those rates ring in that order.
std::vector<int64_t> draw_weighted(Rng& rng, const std::vector<double>& weights, int64_t count) {
  std::vector<std::pair<double, int64_t>> rings;
  for (const double weight : weights) {
    rings.emplace_back(-std::log1p(-rng.unit()) / weight, static_cast<int64_t>(rings.size()));
  }
  std::partial_sort(rings.begin(), rings.begin() + count, rings.end());
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < count; ++i) drawn.push_back(rings[static_cast<size_t>(i)].second);
  return drawn;
}

std::vector<double> place_weights(int64_t places, double power_a) {
  std::vector<double> weights;
  for (int64_t i = 1; i <= places; ++i) {
    weights.push_back(std::pow(static_cast<double>(i), power_a - 1));
  }
  return weights;
}

void fill_mqar(const MqarConfig& config, const MqarSize& size, const std::vector<double>& weights,
               Rng& rng, const Row& row) {
  const int64_t half = config.vocabulary / 2;
  const std::vector<int64_t> keys = draw_distinct(rng, half - 1, size.pairs);
  const std::vector<int64_t> values = draw_distinct(rng, half, size.pairs);
  const std::vector<int64_t> places = draw_weighted(rng, weights, size.pairs);

  for (size_t i = 2 * keys.size(); i < row.tokens.size(); ++i) {
    row.tokens[i] = config.random_non_queries ? rng.below(config.vocabulary) : 0;
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    row.tokens[2 * i] = keys[i] + 1;
    row.tokens[2 * i + 1] = values[i] + half;
    const size_t asked = 2 * (keys.size() + static_cast<size_t>(places[i]));
    row.tokens[asked] = keys[i] + 1;
    row.targets[asked] = values[i] + half;
    row.slices[asked] = size.pairs;
  }
}

void check_size(const MqarSize& size, int64_t vocabulary, const std::string& where) {
  check_even(where + "length", size.length, 4, kMaxLength);
  check_range(where + "pairs", size.pairs, 1, std::min(size.length / 4, vocabulary / 2 - 1),
              ", a quarter of the length and fewer than vocabulary / 2");
  check_range(where + "weight", size.weight, 1, kMaxLength);
}

void skip_spaces(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
}

// Removes the number at the start of `text` and returns it; -1 if there is none.
int64_t take_number(std::string_view& text) {
  skip_spaces(text);
  int64_t value = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc()) return -1;
  text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
  return value;
}

bool take(std::string_view& text, char expected) {
  skip_spaces(text);
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::vector<MqarSize> parse_mqar_sizes(const std::string& text, const std::string& name) {
  std::vector<MqarSize> sizes;
  std::string_view rest = text;
  bool more = true;
  while (more) {
    MqarSize size;
    size.length = take_number(rest);
    bool good = size.length >= 0 && take(rest, ':');
    if (good) good = (size.pairs = take_number(rest)) >= 0;
    if (good && take(rest, '*')) good = (size.weight = take_number(rest)) >= 0;
    more = take(rest, ',');
    if (!good || (!more && !rest.empty())) {
      throw Error(
          name + " = '" + text +
          "': must have the form length:pairs, or several with weights such as 64:4*5, 128:8");
    }
    sizes.push_back(size);
  }
  return sizes;
}

Task mqar_task(const MqarConfig& config, const std::string& where) {
  check_even(where + "vocabulary", config.vocabulary, 4, kMaxLength);
  if (!(config.power_a > 0 && std::isfinite(config.power_a))) {
    std::ostringstream value;
    value << config.power_a;
    throw Error(where + "power_a = " + value.str() + ": must be above 0 and finite");
  }
  if (config.sizes.empty()) throw Error(where + "sizes: must list at least one size");
  int64_t longest = 0;
  std::vector<int64_t> ends;  // cumulative sums of the weights
  std::vector<std::function<Batch(int64_t, uint64_t)>> samples;
  for (const MqarSize& size : config.sizes) {
    check_size(size, config.vocabulary, where + "sizes: ");
    longest = std::max(longest, size.length);
    ends.push_back((ends.empty() ? 0 : ends.back()) + size.weight);
    samples.push_back(by_rows(
        size.length,
        [config, size, weights = place_weights(size.length / 2 - size.pairs, config.power_a)](
            Rng& rng, const Row& row) { fill_mqar(config, size, weights, rng, row); }));
  }
  return {.name = "mqar",
          .vocabulary = config.vocabulary,
          .length = longest,
          .slice_name = "pairs",
          .chance = 200.0 / static_cast<double>(config.vocabulary),
          .sample = [ends, samples](int64_t batch, uint64_t seed) {
            const int64_t drawn = Rng(seed, kSizeStream).below(ends.back());
            const auto size = std::upper_bound(ends.begin(), ends.end(), drawn) - ends.begin();
            return samples[static_cast<size_t>(size)](batch, seed);
          }};
}

TaskEntry mqar_entry() {
  return {.info = {.name = "mqar",
                   .description = "the values of many keys among key-value facts (Zoology)",
                   .keys = {{"vocabulary", "half of it keys, half values"},
                            {"sizes", "length:pairs, or a mix: 64:4*5, 128:8"},
                            {"power_a", "exponent of the power law of gaps; 1 for uniform"},
                            {"random_non_queries", "fill with random tokens, else with 0"}}},
          .make = [](config::Table& table) {
            MqarConfig config;
            config.vocabulary = table.get("vocabulary", config.vocabulary);
            config.sizes = parse_mqar_sizes(table.get("sizes", "64:4"), table.name("sizes"));
            config.power_a = table.get("power_a", config.power_a);
            config.random_non_queries = table.get("random_non_queries", config.random_non_queries);
            return mqar_task(config, table.name(""));
          }};
}

}  // namespace hopmix::tasks

#include "hopmix/tasks/mad_recall.h"

#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "hopmix/base/error.h"
#include "hopmix/tasks/rows.h"

namespace hopmix::tasks {
namespace {

void fill_in_context_recall(const InContextRecallConfig& config, Rng& rng, const Row& row) {
  const int64_t symbols = config.vocabulary - config.noise_vocabulary;
  const int64_t keys = symbols / 2;
  const auto pairs = static_cast<int64_t>(row.tokens.size() / 2);
  const int64_t never_noise = rng.below(pairs - 1);
  std::vector<int64_t> value_of(static_cast<size_t>(keys), -1);
  std::vector<int64_t> seen;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const auto at = static_cast<size_t>(2 * pair);
    const bool last = pair == pairs - 1;
    if (!last && config.noise > 0 && pair != never_noise && rng.unit() < config.noise) {
      row.tokens[at] = symbols + rng.below(config.noise_vocabulary);
      row.tokens[at + 1] = symbols + rng.below(config.noise_vocabulary);
      continue;
    }
    const int64_t key =
        last ? seen[static_cast<size_t>(rng.below(static_cast<int64_t>(seen.size())))]
             : rng.below(keys);
    int64_t& value = value_of[static_cast<size_t>(key)];
    if (value < 0) {
      value = keys + rng.below(symbols - keys);
      seen.push_back(key);
    } else {
      row.targets[at] = value;
    }
    row.tokens[at] = key;
    row.tokens[at + 1] = value;
  }
}

using Motif = std::vector<int64_t>;

Motif draw_motif(Rng& rng, int64_t first, int64_t tokens, int64_t size) {
  Motif motif = draw_distinct(rng, tokens, size);
  for (int64_t& token : motif) token += first;
  return motif;
}

void fill_fuzzy_recall(const FuzzyRecallConfig& config, Rng& rng, const Row& row) {
  const int64_t pad = config.vocabulary - 1, keys = pad / 2;
  const auto draw_key = [&] {
    return draw_motif(rng, 0, keys,
                      config.vary_keys ? 1 + rng.below(config.key_motif) : config.key_motif);
  };
  std::map<Motif, Motif> value_of;
  const auto draw_value = [&](const Motif& key) {
    const auto known = value_of.find(key);
    if (known != value_of.end()) return known->second;
    return value_of[key] = draw_motif(rng, keys, pad - keys, 1 + rng.below(config.value_motif));
  };

  const Motif asked = draw_key();
  const auto size_of = [&](const Motif& key) {
    return static_cast<int64_t>(key.size() + draw_value(key).size());
  };
  // One token more than the row has, because nothing is asked at the last one.
  int64_t left = config.length + 1 - 2 * size_of(asked);
  std::vector<Motif> order;
  while (left >= config.key_motif + config.value_motif) {
    order.push_back(draw_key());
    left -= size_of(order.back());
  }
  order.insert(order.begin() + rng.below(static_cast<int64_t>(order.size()) + 1), asked);
  order.push_back(asked);

  Text text;
  std::set<Motif> seen;
  for (const Motif& key : order) {
    const bool asks = !seen.insert(key).second;
    const Motif& value = value_of.at(key);
    for (size_t i = 0; i < key.size(); ++i) {
      text.say(key[i], asks && i + 1 == key.size() ? value[0] : kNoTarget);
    }
    for (size_t i = 0; i < value.size(); ++i) {
      text.say(value[i], asks && i + 1 < value.size() ? value[i + 1] : kNoTarget);
    }
  }
  text.drop_last();
  text.align_right(pad, row);
}

Task in_context_recall_from(const std::string& name, InContextRecallConfig config,
                            config::Table& table) {
  config.vocabulary = table.get("vocabulary", config.vocabulary);
  config.length = table.get("length", config.length);
  if (config.noise > 0) {
    config.noise_vocabulary = table.get("noise_vocabulary", config.noise_vocabulary);
    config.noise = table.get("noise", config.noise);
  }
  return in_context_recall_task(name, config, table.name(""));
}

}  // namespace

Task in_context_recall_task(const std::string& name, const InContextRecallConfig& config,
                            const std::string& where) {
  if (!(config.noise >= 0 && config.noise < 1)) {
    std::ostringstream value;
    value << config.noise;
    throw Error(where + "noise = " + value.str() + ": must be at least 0 and below 1");
  }
  check_range(where + "noise_vocabulary", config.noise_vocabulary, config.noise > 0 ? 1 : 0,
              kMaxLength);
  check_range(where + "vocabulary", config.vocabulary, config.noise_vocabulary + 4, kMaxLength,
              config.noise_vocabulary > 0 ? ": at least noise_vocabulary + 4" : "");
  check_even(where + "length", config.length, 4, kMaxLength);
  const int64_t symbols = config.vocabulary - config.noise_vocabulary;
  return {.name = name,
          .vocabulary = config.vocabulary,
          .length = config.length,
          .slice_name = "",
          .chance = 100.0 / static_cast<double>(symbols - symbols / 2),
          .sample = by_rows(config.length, [config](Rng& rng, const Row& row) {
            fill_in_context_recall(config, rng, row);
          })};
}

Task fuzzy_recall_task(const FuzzyRecallConfig& config, const std::string& where) {
  check_range(where + "vocabulary", config.vocabulary, 5, kMaxLength);
  const int64_t keys = (config.vocabulary - 1) / 2, values = config.vocabulary - 1 - keys;
  check_range(where + "key_motif", config.key_motif, 1, keys, ", the number of key tokens");
  check_range(where + "value_motif", config.value_motif, 1, values, ", the number of value tokens");
  check_range(where + "length", config.length, 2 * (config.key_motif + config.value_motif) - 1,
              kMaxLength, ": room for one pair, twice");
  return {.name = "fuzzy_recall",
          .vocabulary = config.vocabulary,
          .length = config.length,
          .slice_name = "",
          .chance = 100.0 / static_cast<double>(values),
          .sample = by_rows(config.length, [config](Rng& rng, const Row& row) {
            fill_fuzzy_recall(config, rng, row);
          })};
}

TaskEntry in_context_recall_entry() {
  return {.info = {.name = "in_context_recall",
                   .description = "the value of a key seen earlier in the sequence (MAD)",
                   .keys = {{"vocabulary", "half of it keys, half values"},
                            {"length", "two tokens per pair"}}},
          .make = [](config::Table& table) {
            return in_context_recall_from("in_context_recall", {}, table);
          }};
}

TaskEntry noisy_recall_entry() {
  return {.info = {.name = "noisy_recall",
                   .description = "in-context recall among noise pairs (MAD)",
                   .keys = {{"vocabulary", "noise, and half of the rest keys, half values"},
                            {"length", "two tokens per pair"},
                            {"noise_vocabulary", "tokens used only by noise"},
                            {"noise", "fraction of pairs that are noise"}}},
          .make = [](config::Table& table) {
            return in_context_recall_from(
                "noisy_recall", {.vocabulary = 32, .noise_vocabulary = 16, .noise = 0.2}, table);
          }};
}

TaskEntry fuzzy_recall_entry() {
  return {.info = {.name = "fuzzy_recall",
                   .description = "in-context recall of multi-token keys and values (MAD)",
                   .keys = {{"vocabulary", "padding, and half of the rest keys, half values"},
                            {"length", "tokens in a sequence, including padding"},
                            {"key_motif", "most tokens in a key"},
                            {"value_motif", "most tokens in a value"},
                            {"vary_keys",
                             "keys have 1 to key_motif tokens; false: exactly key_motif"}}},
          .make = [](config::Table& table) {
            FuzzyRecallConfig config;
            config.vocabulary = table.get("vocabulary", config.vocabulary);
            config.length = table.get("length", config.length);
            config.key_motif = table.get("key_motif", config.key_motif);
            config.value_motif = table.get("value_motif", config.value_motif);
            config.vary_keys = table.get("vary_keys", config.vary_keys);
            return fuzzy_recall_task(config, table.name(""));
          }};
}

}  // namespace hopmix::tasks

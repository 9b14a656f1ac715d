#include "hopmix/tasks/recall.h"

#include <numeric>

#include "hopmix/base/error.h"
#include "hopmix/tasks/rows.h"

namespace hopmix::tasks {
namespace {

std::vector<int64_t> shuffled(Rng& rng, std::vector<int64_t> items) {
  rng.shuffle(items);
  return items;
}

std::vector<int64_t> range_from(int64_t first, int64_t count) {
  std::vector<int64_t> items(static_cast<size_t>(count));
  std::iota(items.begin(), items.end(), first);
  return items;
}

// The value at the root of each chain.
std::vector<int64_t> draw_roots(Rng& rng, const ChainsConfig& config) {
  std::vector<int64_t> roots = range_from(0, config.chains);
  for (int64_t& root : roots) {
    root = config.balanced ? root % config.values : rng.below(config.values);
  }
  if (config.balanced) rng.shuffle(roots);
  return roots;
}

// The chain of each fact in the order written: shuffling the multiset makes every interleaving
// equally likely.
std::vector<int64_t> draw_interleaving(Rng& rng, const ChainsConfig& config) {
  std::vector<int64_t> chains = range_from(0, config.chains * (config.hops + 1));
  for (int64_t& chain : chains) chain /= config.hops + 1;
  return shuffled(rng, std::move(chains));
}

void fill_chains(const ChainsConfig& config, Rng& rng, const Row& row) {
  const int64_t depths = config.hops + 1;
  const int64_t query = config.values;  // '?'
  const std::vector<int64_t> roots = draw_roots(rng, config);
  // The name at depth d of chain c is names[c * depths + d].
  const std::vector<int64_t> names = shuffled(rng, range_from(query + 1, config.chains * depths));

  auto token = row.tokens.begin();
  std::vector<int64_t> written(
      roots.size());  // facts of each chain so far, which is the depth of the next
  for (const int64_t chain : draw_interleaving(rng, config)) {
    const int64_t depth = written[chain]++;
    const int64_t fact = chain * depths + depth;
    *token++ = names[fact];
    *token++ = depth == 0 ? roots[chain] : names[fact - 1];
  }

  std::vector<int64_t> asked = shuffled(rng, range_from(0, config.chains * depths));
  asked.resize(config.queries);
  for (const int64_t fact : asked) {
    *token++ = query;
    const auto at = token - row.tokens.begin();
    *token++ = names[fact];
    row.targets[at] = roots[fact / depths];
    if (config.hops > 0) row.slices[at] = fact % depths;
  }
}

Task task_from_table(const std::string& name, ChainsConfig config, config::Table& table) {
  config.chains = table.get("chains", config.chains);
  if (config.hops > 0) config.hops = table.get("hops", config.hops);
  config.values = table.get("values", config.values);
  config.queries = table.get("queries", config.queries);
  config.balanced = table.get("balanced", config.balanced);
  return chains_task(name, config, table.name(""));
}

// Appends the keys common to both tasks.
std::vector<TaskKey> with_common_keys(std::vector<TaskKey> keys) {
  keys.push_back({"values", "number of values"});
  keys.push_back({"queries", "names asked about, all different"});
  keys.push_back({"balanced", "each value equally often; chains must be a multiple of values"});
  return keys;
}

}  // namespace

Task chains_task(const std::string& name, const ChainsConfig& config, const std::string& where) {
  check_range(where + "chains", config.chains, 1, kMaxLength / 2);
  check_range(where + "hops", config.hops, 0, kMaxLength / 2 / config.chains - 1);
  const int64_t facts = config.chains * (config.hops + 1);
  check_range(where + "values", config.values, 2, kMaxLength);
  check_range(where + "queries", config.queries, 1, facts, ", the number of facts");
  if (config.balanced && config.chains % config.values != 0) {
    throw Error(where + "chains = " + std::to_string(config.chains) +
                ": must be a multiple of values = " + std::to_string(config.values) +
                " when balanced");
  }
  const int64_t length = 2 * (facts + config.queries);
  return {.name = name,
          .vocabulary = config.values + 1 + facts,
          .length = length,
          .slice_name = config.hops > 0 ? "depth" : "",
          .chance = 100.0 / static_cast<double>(config.values),
          .sample = by_rows(length,
                            [config](Rng& rng, const Row& row) { fill_chains(config, rng, row); })};
}

TaskEntry associative_recall_entry() {
  return {.info = {.name = "associative_recall",
                   .description = "the value of a key among key-value facts",
                   .keys = with_common_keys({{"chains", "facts, each a key and its value"}})},
          .make = [](config::Table& table) {
            return task_from_table("associative_recall", {.chains = 24, .hops = 0}, table);
          }};
}

TaskEntry multi_hop_recall_entry() {
  return {
      .info = {.name = "multi_hop_recall",
               .description = "the value at the root of a chain of keys",
               .keys = with_common_keys({{"chains", "chains, each with a value of its own"},
                                         {"hops", "keys of a chain beyond the first"}})},
      .make = [](config::Table& table) { return task_from_table("multi_hop_recall", {}, table); }};
}

}  // namespace hopmix::tasks

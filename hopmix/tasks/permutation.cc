#include "hopmix/tasks/permutation.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "hopmix/base/error.h"
#include "hopmix/tasks/rows.h"

namespace hopmix::tasks {
namespace {

using Permutation = std::vector<size_t>;  // x -> p[x]

bool even(const Permutation& p) {
  int inversions = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    for (size_t j = 0; j < i; ++j) inversions += p[j] > p[i];
  }
  return inversions % 2 == 0;
}

// In lexicographic order.
std::vector<Permutation> elements_of(const std::string& group) {
  Permutation p(static_cast<size_t>(group[1] - '0'));
  std::iota(p.begin(), p.end(), size_t{0});
  std::vector<Permutation> elements;
  do {
    if (group[0] == 'S' || even(p)) elements.push_back(p);
  } while (std::next_permutation(p.begin(), p.end()));
  return elements;
}

int64_t moved_by(const Permutation& p) {
  int64_t moved = 0;
  for (size_t x = 0; x < p.size(); ++x) moved += p[x] != x;
  return moved;
}

// Entry first * size + second: the index of `first`, then `second`.
std::vector<int64_t> products_of(const std::vector<Permutation>& elements) {
  std::vector<int64_t> products;
  for (const Permutation& first : elements) {
    for (const Permutation& second : elements) {
      Permutation product;
      for (const size_t x : first) product.push_back(second[x]);
      const auto found = std::lower_bound(elements.begin(), elements.end(), product);
      products.push_back(found - elements.begin());
    }
  }
  return products;
}

}  // namespace

Task permutation_task(const PermutationConfig& config, const std::string& where) {
  check_choice(where + "group", config.group, {"S3", "S4", "S5", "A4", "A5"});
  check_choice(where + "tokens", config.tokens, {"elements", "swaps"});
  check_range(where + "length", config.length, 1, kMaxLength);
  const bool swaps = config.tokens == "swaps";
  if (swaps && config.group[0] == 'A') {
    throw Error(where + "tokens = 'swaps': must be 'elements' for " + config.group +
                ", which has no swaps");
  }
  const std::vector<Permutation> elements = elements_of(config.group);
  std::vector<int64_t> drawn;
  for (size_t i = 0; i < elements.size(); ++i) {
    if (!swaps || moved_by(elements[i]) <= 2) drawn.push_back(static_cast<int64_t>(i));
  }
  const auto size = static_cast<int64_t>(elements.size());
  const auto fill = [size, drawn, products = products_of(elements)](Rng& rng, const Row& row) {
    int64_t product = 0;  // the identity
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      const int64_t factor =
          drawn[static_cast<size_t>(rng.below(static_cast<int64_t>(drawn.size())))];
      product = products[static_cast<size_t>(product * size + factor)];
      row.tokens[i] = factor;
      row.targets[i] = product;
      row.slices[i] = static_cast<int64_t>(std::bit_ceil(i + 1));
    }
  };
  return {.name = "permutation",
          .vocabulary = size,
          .length = config.length,
          .slice_name = "factors",
          .chance = 100.0 / static_cast<double>(size),
          .sample = by_rows(config.length, fill)};
}

TaskEntry permutation_entry() {
  return {.info = {.name = "permutation",
                   .description = "the running product of permutations",
                   .keys = {{"group", "S3, S4, S5, A4 or A5"},
                            {"tokens", "factors: elements, or only swaps"},
                            {"length", "factors"}}},
          .make = [](config::Table& table) {
            PermutationConfig config;
            config.group = table.get("group", config.group);
            config.tokens = table.get("tokens", config.tokens);
            config.length = table.get("length", config.length);
            return permutation_task(config, table.name(""));
          }};
}

}  // namespace hopmix::tasks

#include "hopmix/nn/publication.h"

#include <algorithm>

#include "hopmix/base/nearest.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {
namespace {

constexpr int64_t kMost = 4096;  // positions that a token may reach

}  // namespace

void Publication::ask(const std::vector<int64_t>& widths, bool include_self) {
  Selected& selected = selection(include_self);
  for (size_t hop = 0; hop < widths.size(); ++hop) {
    selected.kappa = std::max(selected.kappa, widths[hop]);
    if (hop > 0) selected.pointers = std::max(selected.pointers, widths[hop]);
  }
}

std::vector<int64_t> read_widths(config::Table& table, const std::vector<int64_t>& fallback) {
  const std::vector<int64_t> widths = table.integers("widths", fallback);
  int64_t reached = 1;
  for (const int64_t width : widths) {
    reached = width < 1 || width > kMost ? kMost + 1 : std::min(reached * width, kMost + 1);
  }
  if (widths.empty() || reached > kMost) {
    throw table.bad("widths",
                    "must list at least one number, each at least 1, with a product of at most " +
                        std::to_string(kMost));
  }
  return widths;
}

int64_t read_kappa(config::Table& table, int64_t fallback) {
  const int64_t kappa = table.get("kappa", fallback);
  if (kappa < 1 || kappa > kMost) {
    throw table.bad("kappa", "must be from 1 to " + std::to_string(kMost));
  }
  return kappa;
}

int64_t read_reader_heads(config::Table& table, const Publication& publication) {
  const int64_t heads = table.get_between("heads", publication.heads, 1, kMostSize);
  if (heads % publication.heads == 0) return heads;
  throw table.bad("heads", "must be a multiple of the heads of mem '" + table.require("mem") +
                               "', " + std::to_string(publication.heads));
}

void publish(config::Table& table, Publications& mem, const Publication& publication) {
  if (mem.emplace(table.require("mem"), publication).second) return;
  throw table.bad("mem", "is already published by an earlier layer; choose another name");
}

Publication& find_publication(config::Table& table, Publications& mem) {
  const std::string name = table.require("mem");
  const auto found = mem.find(name);
  if (found != mem.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, publication] : mem) names.push_back(known);
  throw table.bad("mem", names.empty() ? "no earlier layer publishes a cache (attention with a mem)"
                                       : "no earlier layer publishes it" + suggestion(name, names));
}

}  // namespace hopmix::nn

// A cache that one layer publishes (`mem = "name"` in a config) and later layers read: what is
// known of it once the keys of all layers have been read, before any layer is built.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hopmix/config/config.h"

namespace hopmix::nn {

/// Sizes of what is published, and what its readers require of the selection.
struct Publication {
  int64_t heads = 0, kv_heads = 0, key_width = 0, value_width = 0;
  bool rope = false;  // q and k are rotated by position

  /// The best positions of every token: how many, and how many of them decoding keeps for past
  /// tokens, to follow chains.
  struct Selected {
    int64_t kappa = 0, pointers = 0;
  };
  Selected with_self = {};  // among all tokens up to this one
  Selected earlier = {};    // among strictly earlier ones

  Selected& selection(bool include_self) { return include_self ? with_self : earlier; }
  const Selected& selection(bool include_self) const { return include_self ? with_self : earlier; }

  /// Registers a reader that follows `widths` links from hop to hop.
  void ask(const std::vector<int64_t>& widths, bool include_self);
};

using Publications = std::map<std::string, Publication>;

/// Reads the key `widths`: at least one, each at least 1, reaching at most 4096 positions.
std::vector<int64_t> read_widths(config::Table& table, const std::vector<int64_t>& fallback);

/// Reads the key `kappa`: 1 to 4096 positions per token.
int64_t read_kappa(config::Table& table, int64_t fallback);

/// Reads the key `heads` of a reader: a multiple of the publisher's, the default.
int64_t read_reader_heads(config::Table& table, const Publication& publication);

/// Registers what a layer publishes under the table's key `mem`. Throws Error if the name is taken.
void publish(config::Table& table, Publications& mem, const Publication& publication);

/// Finds what is published under the table's key `mem`. Throws Error, suggesting the nearest name,
/// if no earlier layer publishes it.
Publication& find_publication(config::Table& table, Publications& mem);

}  // namespace hopmix::nn

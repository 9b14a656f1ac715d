// Recall: look up a key among facts, directly (associative recall) or through a chain of keys
// (multi-hop recall).
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct ChainsConfig {
  int64_t chains = 6;     // at least 1
  int64_t hops = 3;       // facts of a chain beyond its first, at least 0
  int64_t values = 4;     // at least 2
  int64_t queries = 8;    // 1 to chains * (hops + 1)
  bool balanced = false;  // every value is the root of equally many chains (a multiple of `values`)
};

/// Facts, then queries. A chain of `hops` + 1 facts gives a value to a name, then that name to
/// another, and so on: `x0 v`, `x1 x0`, `x2 x1`. A fact is two tokens, `name source`. Chains are
/// interleaved, each in its own order, every interleaving equally likely. A query is `? name`; at
/// the name the target is the value v at the root of its chain. The names queried are distinct and
/// drawn uniformly, hence uniformly over depths.
///
/// Tokens: values are 0 .. V-1, '?' is V, the names of chains * (hops + 1) facts follow. Slices:
/// the depth of the name queried, 0 .. hops ("depth"; none if hops = 0). If not balanced, guessing
/// the most frequent value beats `chance` (about 46 against 25 with 6 chains).
///
/// Throws Error for a size out of range; `where` precedes the key in the message.
Task chains_task(const std::string& name, const ChainsConfig& config,
                 const std::string& where = "");

/// Associative recall: chains without hops, 24 of them by default.
TaskEntry associative_recall_entry();
TaskEntry multi_hop_recall_entry();

}  // namespace hopmix::tasks

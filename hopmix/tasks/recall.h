// Recall: look up a key among facts, directly (associative recall) or through a chain of keys
// (multi-hop recall).
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct ChainsConfig {
  int64_t chains = 6;     // from 1
  int64_t hops = 3;       // facts of a chain beyond its first, from 0
  int64_t values = 4;     // from 2
  int64_t queries = 8;    // from 1 to chains * (hops + 1)
  bool balanced = false;  // every value is the root of equally many chains (a multiple of `values`)
};

/// Facts, then queries. A chain of `hops` + 1 facts gives a value to a name, then that name to
/// another, and so on: `x0 v`, `x1 x0`, `x2 x1`. A fact is two tokens, `name source`. Chains are
/// interleaved, each in its own order, every interleaving equally likely. A query is `? name`; at
/// its name the target is the value v that the chain starts from. The names asked are distinct,
/// drawn uniformly over all of them, and so over depths.
///
/// Tokens: values are 0 .. V-1, '?' is V, the names of chains * (hops + 1) facts follow. Slices:
/// the depth of the name asked, 0 .. hops ("depth"; none with hops = 0, where every name is at
/// depth 0). Unbalanced, a guess of the value seen most often beats `chance` (about 46 against 25
/// with 6 chains).
///
/// Throws Error for a size out of range; `where` goes before the key in its message.
Task chains_task(const std::string& name, const ChainsConfig& config,
                 const std::string& where = "");

/// Associative recall is chains without hops: 24 of them by default.
TaskEntry associative_recall_entry();
TaskEntry multi_hop_recall_entry();

}  // namespace hopmix::tasks

// The recall tasks of MAD, "Mechanistic Design and Scaling of Hybrid Architectures" (arXiv
// 2403.17844). MAD trains on every next token and scores the questions; here the questions alone
// are asked, in training too.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct InContextRecallConfig {
  int64_t vocabulary = 16;       // noise included
  int64_t length = 128;          // even, from 4
  int64_t noise_vocabulary = 0;  // of the vocabulary, tokens that only noise uses
  double noise = 0;              // share of pairs that are noise, in [0, 1)
};

/// In-context recall, and with noise noisy in-context recall. Pairs `key value`: keys are drawn
/// uniformly from the first half of the vocabulary without noise, and each gets a value from the
/// second when it first comes. The target at a key seen before is its value. The last pair is one
/// that was seen, each of those keys equally likely. A noise pair is two noise tokens; one pair,
/// drawn uniformly, is never noise.
///
/// Throws Error for a size out of range; `where` goes before the key in its message.
Task in_context_recall_task(const std::string& name, const InContextRecallConfig& config,
                            const std::string& where = "");

struct FuzzyRecallConfig {
  int64_t vocabulary = 16;  // the last token pads
  int64_t length = 128;
  int64_t key_motif = 3;    // tokens of a key at most; a key's tokens differ
  int64_t value_motif = 3;  // tokens of a value at most; a value's tokens differ
  bool vary_keys = true;    // from 1 token on, as MAD trains; false: all key_motif, as MAD scores
};

/// Fuzzy in-context recall: keys and values of several tokens, their lengths drawn uniformly, then
/// the motif among those of that length. At the last token of a key seen before, and along its
/// value, the target is the value's next token. One pair, at a place drawn uniformly, comes again
/// at the end; padding fills the left.
///
/// Throws Error for a size out of range; `where` goes before the key in its message.
Task fuzzy_recall_task(const FuzzyRecallConfig& config, const std::string& where = "");

TaskEntry in_context_recall_entry();
TaskEntry noisy_recall_entry();
TaskEntry fuzzy_recall_entry();

}  // namespace hopmix::tasks

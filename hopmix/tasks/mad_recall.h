// The recall tasks of MAD, "Mechanistic Design and Scaling of Hybrid Architectures" (arXiv
// 2403.17844). MAD trains on every next token and scores only the questions; here only the
// questions are asked, in training too.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct InContextRecallConfig {
  int64_t vocabulary = 16;       // including noise
  int64_t length = 128;          // even, at least 4
  int64_t noise_vocabulary = 0;  // tokens of the vocabulary used only by noise
  double noise = 0;              // fraction of pairs that are noise, in [0, 1)
};

/// In-context recall; with noise, noisy in-context recall. Pairs `key value`: keys are drawn
/// uniformly from the first half of the vocabulary without noise, and each gets a value from the
/// second half when it first occurs. At a key seen before the target is its value. The last pair
/// repeats an earlier one, each key seen being equally likely. A noise pair is two noise tokens;
/// one pair, drawn uniformly, is never noise.
///
/// Throws Error for a size out of range; `where` precedes the key in the message.
Task in_context_recall_task(const std::string& name, const InContextRecallConfig& config,
                            const std::string& where = "");

struct FuzzyRecallConfig {
  int64_t vocabulary = 16;  // the last token is padding
  int64_t length = 128;
  int64_t key_motif = 3;    // most tokens in a key, all different
  int64_t value_motif = 3;  // most tokens in a value, all different
  bool vary_keys = true;    // 1 to key_motif, as MAD trains; false: exactly key_motif, as it scores
};

/// Fuzzy in-context recall: keys and values of several tokens. Lengths are drawn uniformly, then
/// the motif among those of that length. At the last token of a key seen before, and along its
/// value, the target is the value's next token. One pair, at a uniformly drawn position, repeats at
/// the end; padding fills the left.
///
/// Throws Error for a size out of range; `where` precedes the key in the message.
Task fuzzy_recall_task(const FuzzyRecallConfig& config, const std::string& where = "");

TaskEntry in_context_recall_entry();
TaskEntry noisy_recall_entry();
TaskEntry fuzzy_recall_entry();

}  // namespace hopmix::tasks

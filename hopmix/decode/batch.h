// Batched generation: each text has its own position, sampling and stops, and each step reads every
// weight once for the whole batch.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hopmix/decode/sampling.h"
#include "hopmix/decode/stop_strings.h"
#include "hopmix/decode/utf8_stream.h"
#include "hopmix/nn/model.h"
#include "hopmix/text/tokenizer.h"

namespace hopmix::decode {

struct GenerateConfig {
  int64_t tokens = 200;  // most tokens to draw, at least 1
  SamplingConfig sampling = {};
  uint64_t seed = 0;
  std::vector<std::string> stops = {};  // the text ends before the first of these
};

/// Throws Error if tokens is below 1, sampling is out of range, or a stop is empty.
void check(const GenerateConfig& config);

struct Generation {
  std::string text;                        // UTF-8, without the prompt
  int64_t prompt_tokens = 0, tokens = 0;   // the session's unread tokens count as prompt
  bool stopped = false;                    // by a stop string or the end of the document
  int64_t state_bytes = 0;                 // of the model's state at the end
  double prompt_seconds = 0, seconds = 0;  // for the prompt; for the generated text
};

/// A text in progress. A copy is a fork (nn/mixer.h).
struct Session {
  nn::ModelState state;
  std::vector<int64_t> unread = {};  // drawn, but not read by the model yet
};

/// A batch of sequences of any lengths, which join and leave between steps. Each sequence has its
/// own state, so joining and leaving move no data, and its text is what it would be alone, up to
/// the rounding of products of several rows instead of one. Not thread-safe.
class Batch {
 public:
  /// `model` must outlive the batch.
  Batch(nn::LanguageModel& model, const text::Tokenizer& tokenizer);

  /// What a sequence returns when it leaves.
  struct Left {
    Generation made;
    Session session;
    std::string error = {};  // why it failed; empty if it did not
  };

  /// What a sequence produced in one step: whole characters, only those that are certain, so often
  /// none.
  struct Piece {
    int64_t id;
    std::string text;
    std::optional<Left> left = {};  // set if this was its last step
  };

  /// Reads a prompt by itself and returns the id of its sequence; ids count up from 0. Throws
  /// Error, and changes nothing, if the prompt is empty or not UTF-8, if the config is invalid, or
  /// if prompt and tokens exceed what the model supports.
  int64_t join(const std::string& prompt, const GenerateConfig& config);

  /// The same, continuing `session`, which is moved from only if the call succeeds. The prompt may
  /// be empty if the session has unread tokens.
  int64_t join(const std::string& prompt, const GenerateConfig& config, Session&& session);
  int64_t join(const std::string& prompt, const GenerateConfig& config, const Session& session);

  /// Starts a new sequence from the current state of `id`, with its own config. The two share
  /// memory until one of them writes to it.
  int64_t fork(int64_t id, const GenerateConfig& config);

  /// Draws one more token for every sequence, in order of id. A sequence leaves when it is done or
  /// when it fails: its logits are not finite, or the model cannot take its next step. The others
  /// continue.
  std::vector<Piece> step();

  /// Ends sequence `id` early. Throws Error if it has left or never joined.
  Left leave(int64_t id);

  /// The number of sequences in the batch.
  int64_t size() const { return static_cast<int64_t>(sequences_.size()); }

 private:
  struct Sequence {
    GenerateConfig config;
    Session session;
    torch::Tensor logits;  // of the next token, float32; undefined while tokens are unread
    StopStrings stops;
    Utf8Stream characters = {};
    std::mt19937_64 random;
    Generation made = {};
    std::chrono::steady_clock::time_point start = {};
    std::string error = {};  // why it cannot take its next step
  };

  Sequence make(const GenerateConfig& config, int64_t behind, int64_t prompt) const;
  int64_t add(Sequence&& sequence);
  std::map<int64_t, Sequence>::iterator find(int64_t id);
  void read_last_tokens();
  std::string draw(Sequence& sequence) const;  // returns the text that may be shown
  static std::string finish(Sequence& sequence);
  static Left leave(Sequence&& sequence);

  nn::LanguageModel* model_;
  text::Tokenizer tokenizer_;
  std::map<int64_t, Sequence> sequences_;  // by id
  int64_t next_id_ = 0;
};

}  // namespace hopmix::decode

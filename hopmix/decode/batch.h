// Texts that go on together: each has its own place, sampling and end, and every weight is read
// once a step for all of them.
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
  int64_t tokens = 200;  // at most; from 1
  SamplingConfig sampling = {};
  uint64_t seed = 0;
  std::vector<std::string> stops = {};  // the text ends before the first of these
};

/// Throws Error for tokens below 1, sampling out of range, an empty stop.
void check(const GenerateConfig& config);

struct Generation {
  std::string text;                        // UTF-8, without the prompt
  int64_t prompt_tokens = 0, tokens = 0;   // unread ones of the session are of the prompt
  bool stopped = false;                    // by a stop string, or the end of the document
  int64_t state_bytes = 0;                 // that the model holds at the end
  double prompt_seconds = 0, seconds = 0;  // for the prompt, and for what follows
};

/// Where a text stands. A copy is a fork (nn/mixer.h).
struct Session {
  nn::ModelState state;
  std::vector<int64_t> unread = {};  // drawn, and not taken in yet
};

/// Sequences of any lengths that join and leave between steps. Each keeps a state of its own, so
/// neither moves anything, and its text is what it would be alone, up to the rounding of products
/// of several rows in place of one. For one thread at a time.
class Batch {
 public:
  /// The model is to outlive it.
  Batch(nn::LanguageModel& model, const text::Tokenizer& tokenizer);

  /// What a sequence leaves with.
  struct Left {
    Generation made;
    Session session;
    std::string error = {};  // why it could not go on, if so
  };

  /// What a sequence said in a step: whole characters, as many as are certain, often none.
  struct Piece {
    int64_t id;
    std::string text;
    std::optional<Left> left = {};  // this was its last step
  };

  /// Takes a prompt in, alone, and returns the id of its sequence, from 0 on in order. Throws Error
  /// for a prompt that is empty or not UTF-8, a bad config, and where prompt and tokens are more
  /// than the model can have; then nothing has changed.
  int64_t join(const std::string& prompt, const GenerateConfig& config);

  /// The same behind the text of `session`, which is only moved from if it joins. The prompt may be
  /// empty if there are unread tokens.
  int64_t join(const std::string& prompt, const GenerateConfig& config, Session&& session);
  int64_t join(const std::string& prompt, const GenerateConfig& config, const Session& session);

  /// A new sequence that goes on, by its own config, from where that of `id` stands. Neither copies
  /// what it has in common with the other until it writes there.
  int64_t fork(int64_t id, const GenerateConfig& config);

  /// Draws one more token of every sequence, in order of id. One that is done, or cannot go on
  /// (logits that are not finite), leaves. Throws Error only where the model itself does, and then
  /// no sequence can go on.
  std::vector<Piece> step();

  /// Before its end. Throws Error where `id` has left or never joined.
  Left leave(int64_t id);

  /// Sequences that a step would draw for.
  int64_t size() const { return static_cast<int64_t>(sequences_.size()); }

 private:
  struct Sequence {
    GenerateConfig config;
    Session session;
    torch::Tensor logits;  // of its next token, float32; undefined until its last one is read
    StopStrings stops;
    Utf8Stream characters = {};
    std::mt19937_64 random;
    Generation made = {};
    std::chrono::steady_clock::time_point start = {};
  };

  Sequence make(const GenerateConfig& config, int64_t behind, int64_t prompt) const;
  int64_t add(Sequence&& sequence);
  std::map<int64_t, Sequence>::iterator find(int64_t id);
  void read_last_tokens();
  std::string draw(Sequence& sequence) const;  // -> what may be shown
  static std::string finish(Sequence& sequence);
  static Left leave(Sequence&& sequence);

  nn::LanguageModel* model_;
  text::Tokenizer tokenizer_;
  std::map<int64_t, Sequence> sequences_;  // by id
  int64_t next_id_ = 0;
};

}  // namespace hopmix::decode

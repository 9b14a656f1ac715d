#include "hopmix/decode/batch.h"

#include <utility>

#include "hopmix/base/utf8.h"

namespace hopmix::decode {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The last of the `tokens` is drawn but never read, hence the -1.
void check_length(const nn::LanguageModel& model, int64_t behind, int64_t prompt, int64_t tokens) {
  const nn::ModelConfig& config = model.config();
  const int64_t length = behind + prompt + tokens - 1;
  if (config.positions != "learned" || length <= config.max_length) {
    return model.check_length(length);
  }
  const std::string table = "the model's table of learned positions holds " +
                            std::to_string(config.max_length) + " (model.max_length)";
  if (behind > 0) {
    throw Error("tokens = " + std::to_string(tokens) + ": too many after a state of " +
                std::to_string(behind) + " tokens and a prompt of " + std::to_string(prompt) +
                ": " + table);
  }
  if (prompt > config.max_length) {
    throw Error("prompt: has " + std::to_string(prompt) + " tokens, but " + table);
  }
  throw Error("tokens = " + std::to_string(tokens) + ": must be at most " +
              std::to_string(config.max_length - prompt + 1) + " after a prompt of " +
              std::to_string(prompt) + ": " + table);
}

int64_t bytes_of(const nn::ModelState& state) {
  int64_t total = 0;
  for (const nn::State& block : state.blocks) total += block.bytes();
  return total;
}

}  // namespace

void check(const GenerateConfig& config) {
  if (config.tokens < 1) {
    throw Error("tokens = " + std::to_string(config.tokens) + ": must be at least 1");
  }
  check(config.sampling);
  const StopStrings stops(config.stops);
}

Batch::Batch(nn::LanguageModel& model, const text::Tokenizer& tokenizer)
    : model_(&model), tokenizer_(tokenizer) {}

Batch::Sequence Batch::make(const GenerateConfig& config, int64_t behind, int64_t prompt) const {
  check(config);
  check_length(*model_, behind, prompt, config.tokens);
  Sequence sequence{.config = config,
                    .session = {},
                    .logits = {},
                    .stops = StopStrings(config.stops),
                    .random = std::mt19937_64(config.seed)};
  sequence.made.prompt_tokens = prompt;
  return sequence;
}

int64_t Batch::add(Sequence&& sequence) {
  sequence.start = Clock::now();
  sequences_.emplace(next_id_, std::move(sequence));
  return next_id_++;
}

int64_t Batch::join(const std::string& prompt, const GenerateConfig& config) {
  return join(prompt, config, Session{model_->initial_state(1)});
}

int64_t Batch::join(const std::string& prompt, const GenerateConfig& config,
                    const Session& session) {
  return join(prompt, config, Session(session));
}

int64_t Batch::join(const std::string& prompt, const GenerateConfig& config, Session&& session) {
  if (const auto bad = first_bad_utf8(prompt)) {
    throw Error("prompt: must be UTF-8, but byte " + std::to_string(*bad) + " is invalid");
  }
  std::vector<int64_t> read = session.unread;
  tokenizer_.encode(prompt, read);
  if (read.empty()) throw Error("prompt = '" + prompt + "': must contain at least one token");
  Sequence sequence = make(config, session.state.position(), static_cast<int64_t>(read.size()));
  sequence.session = std::move(session);
  sequence.session.unread.clear();
  const torch::NoGradGuard no_grad;
  const Clock::time_point start = Clock::now();
  sequence.logits =
      model_->prefill(torch::tensor(read, torch::kLong).unsqueeze(0), sequence.session.state)
          .to(torch::kFloat32);
  sequence.made.prompt_seconds = seconds_since(start);
  return add(std::move(sequence));
}

int64_t Batch::fork(int64_t id, const GenerateConfig& config) {
  const Sequence& from = find(id)->second;
  const auto unread = static_cast<int64_t>(from.session.unread.size());
  Sequence sequence = make(config, from.session.state.position(), unread);
  sequence.session = from.session;
  sequence.logits = from.logits;
  return add(std::move(sequence));
}

std::vector<Batch::Piece> Batch::step() {
  const torch::NoGradGuard no_grad;
  read_last_tokens();
  std::vector<Piece> pieces;
  for (auto it = sequences_.begin(); it != sequences_.end();) {
    Sequence& sequence = it->second;
    Piece& piece = pieces.emplace_back(Piece{.id = it->first, .text = {}});
    std::string& error = sequence.error;
    try {
      if (error.empty()) piece.text = draw(sequence);
    } catch (const Error& failure) {
      error = failure.what();
    }
    const bool done = sequence.made.stopped || sequence.made.tokens == sequence.config.tokens;
    if (!done && error.empty()) {
      ++it;
      continue;
    }
    piece.text += finish(sequence);
    piece.left = leave(std::move(sequence));
    it = sequences_.erase(it);
  }
  return pieces;
}

void Batch::read_last_tokens() {
  std::vector<int64_t> tokens;
  std::vector<nn::ModelState*> states;
  std::vector<Sequence*> readers;
  for (auto& [id, sequence] : sequences_) {
    if (sequence.logits.defined()) continue;
    try {  // before a step of all of them changes any state
      model_->check_step(sequence.session.state.position());
    } catch (const Error& failure) {
      sequence.error = failure.what();
      continue;
    }
    tokens.push_back(sequence.session.unread.front());
    states.push_back(&sequence.session.state);
    readers.push_back(&sequence);
  }
  if (readers.empty()) return;
  const torch::Tensor logits =
      model_->step(torch::tensor(tokens, torch::kLong), states).to(torch::kFloat32);
  for (size_t b = 0; b < readers.size(); ++b) {
    readers[b]->logits = logits[static_cast<int64_t>(b)];
    readers[b]->session.unread.clear();
  }
}

std::string Batch::draw(Sequence& sequence) const {
  const torch::Tensor row = std::exchange(sequence.logits, {}).contiguous();
  const int64_t token =
      decode::draw(candidates({row.const_data_ptr<float>(), static_cast<size_t>(row.numel())},
                              sequence.config.sampling),
                   sequence.random);
  ++sequence.made.tokens;
  if (token == tokenizer_.end_of_document()) {  // no model learns to read it
    sequence.made.stopped = true;
    return "";
  }
  sequence.session.unread = {token};
  std::string text = sequence.stops.push(sequence.characters.push(tokenizer_.bytes(token)));
  sequence.made.stopped = sequence.stops.stopped();
  sequence.made.text += text;
  return text;
}

std::string Batch::finish(Sequence& sequence) {
  std::string text = sequence.stops.push(sequence.characters.finish());
  text += sequence.stops.finish();
  sequence.made.text += text;
  return text;
}

Batch::Left Batch::leave(Sequence&& sequence) {
  Left left{.made = std::move(sequence.made),
            .session = std::move(sequence.session),
            .error = std::move(sequence.error)};
  left.made.state_bytes = bytes_of(left.session.state);
  left.made.seconds = seconds_since(sequence.start);
  return left;
}

Batch::Left Batch::leave(int64_t id) {
  const auto it = find(id);
  finish(it->second);
  Left left = leave(std::move(it->second));
  sequences_.erase(it);
  return left;
}

std::map<int64_t, Batch::Sequence>::iterator Batch::find(int64_t id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) {
    throw Error("sequence " + std::to_string(id) +
                ": is not in the batch; it left or never joined");
  }
  return it;
}

}  // namespace hopmix::decode

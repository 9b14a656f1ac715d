#include "hopmix/decode/generate.h"

#include <chrono>

#include "hopmix/decode/stop_strings.h"
#include "hopmix/decode/utf8_stream.h"

namespace hopmix::decode {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The last of the `tokens` is drawn, and never read.
void check_positions(const nn::ModelConfig& model, int64_t behind, int64_t prompt, int64_t tokens) {
  if (model.positions != "learned" || behind + prompt + tokens - 1 <= model.max_length) return;
  const std::string table = "the model's table of learned positions holds " +
                            std::to_string(model.max_length) + " (model.max_length)";
  if (behind > 0) {
    throw Error("the state is of " + std::to_string(behind) + " tokens, the prompt has " +
                std::to_string(prompt) + " and tokens = " + std::to_string(tokens) +
                ": too many, " + table);
  }
  if (prompt > model.max_length) {
    throw Error("prompt: has " + std::to_string(prompt) + " tokens, and " + table);
  }
  throw Error("tokens = " + std::to_string(tokens) + ": must be at most " +
              std::to_string(model.max_length - prompt + 1) + " after a prompt of " +
              std::to_string(prompt) + ": " + table);
}

int64_t bytes_of(const nn::ModelState& state) {
  int64_t total = 0;
  for (const nn::State& block : state.blocks) total += block.bytes();
  return total;
}

}  // namespace

torch::Tensor prefill(nn::LanguageModel& model, const torch::Tensor& tokens,
                      nn::ModelState& state) {
  return model.prefill(tokens, state);
}

Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show) {
  Session session{model.initial_state(1)};
  return generate(model, tokenizer, prompt, config, show, session);
}

Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show, Session& session) {
  if (const auto bad = first_bad_utf8(prompt)) {
    throw Error("prompt: must be UTF-8, which byte " + std::to_string(*bad) + " is not");
  }
  const std::vector<int64_t> added = tokenizer.encode(prompt);
  std::vector<int64_t> read = session.unread;
  read.insert(read.end(), added.begin(), added.end());
  if (read.empty()) throw Error("prompt = '" + prompt + "': must hold at least one token");
  if (config.tokens < 1) {
    throw Error("tokens = " + std::to_string(config.tokens) + ": must be at least 1");
  }
  check(config.sampling);
  StopStrings stops(config.stops);
  Generation result;
  result.prompt_tokens = static_cast<int64_t>(read.size());
  nn::ModelState& state = session.state;
  check_positions(model.config(), state.position(), result.prompt_tokens, config.tokens);

  const torch::NoGradGuard no_grad;
  Utf8Stream characters;
  std::mt19937_64 random(config.seed);
  const auto say = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    show(text);
  };

  auto start = std::chrono::steady_clock::now();
  torch::Tensor logits = prefill(model, torch::tensor(read, torch::kLong).unsqueeze(0), state);
  result.prompt_seconds = seconds_since(start);

  start = std::chrono::steady_clock::now();
  for (;;) {
    const torch::Tensor row = logits.to(torch::kFloat32).contiguous();
    const int64_t token =
        draw(candidates({row.const_data_ptr<float>(), static_cast<size_t>(row.numel())},
                        config.sampling),
             random);
    session.unread = {token};
    ++result.tokens;
    say(stops.push(characters.push(tokenizer.bytes(token))));
    if (stops.stopped() || result.tokens == config.tokens) break;
    logits = model.step(torch::tensor({token}, torch::kLong), state);
  }
  say(stops.push(characters.finish()));
  say(stops.finish());
  result.seconds = seconds_since(start);
  result.stopped = stops.stopped();
  result.state_bytes = bytes_of(state);
  return result;
}

}  // namespace hopmix::decode

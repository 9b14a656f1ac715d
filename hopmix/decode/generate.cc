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
void check_positions(const nn::ModelConfig& model, int64_t prompt, int64_t tokens) {
  if (model.positions != "learned" || prompt + tokens - 1 <= model.max_length) return;
  const std::string table = "the model's table of learned positions holds " +
                            std::to_string(model.max_length) + " (model.max_length)";
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
  torch::Tensor logits;
  for (int64_t t = 0; t < tokens.size(1); ++t) logits = model.step(tokens.select(1, t), state);
  return logits;
}

Generation generate(nn::LanguageModel& model, const text::Tokenizer& tokenizer,
                    const std::string& prompt, const GenerateConfig& config,
                    const std::function<void(std::string_view)>& show) {
  if (const auto bad = first_bad_utf8(prompt)) {
    throw Error("prompt: must be UTF-8, which byte " + std::to_string(*bad) + " is not");
  }
  const std::vector<int64_t> read = tokenizer.encode(prompt);
  if (read.empty()) throw Error("prompt = '" + prompt + "': must hold at least one token");
  if (config.tokens < 1) {
    throw Error("tokens = " + std::to_string(config.tokens) + ": must be at least 1");
  }
  check(config.sampling);
  StopStrings stops(config.stops);
  Generation result;
  result.prompt_tokens = static_cast<int64_t>(read.size());
  check_positions(model.config(), result.prompt_tokens, config.tokens);

  const torch::NoGradGuard no_grad;
  Utf8Stream characters;
  std::mt19937_64 random(config.seed);
  nn::ModelState state = model.initial_state(1);
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

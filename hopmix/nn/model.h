// A language model from a config: embeddings, positions, pre-norm blocks that each name their
// mixer, a head.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hopmix/config/config.h"
#include "hopmix/nn/mixer.h"
#include "hopmix/nn/norm.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

/// x + mixer(norm(x)), then x + mlp(norm(x)) with a GELU MLP of `mlp` times the width (none if 0).
class Block : public torch::nn::Module {
 public:
  Block(int64_t width, int64_t mlp, std::shared_ptr<Mixer> mixer);

  Tensor forward(const Tensor& x, Context& context);  // [B,T,width] -> what is wanted of it
  Tensor step(const Tensor& x, State& state, Context& context);  // [B,width]
  const Mixer& mixer() const { return *mixer_; }

 private:
  Tensor feed_forward(const Tensor& x);

  std::shared_ptr<Mixer> mixer_;
  std::shared_ptr<RmsNorm> mixer_norm_, mlp_norm_;
  torch::nn::Linear up_{nullptr}, down_{nullptr};
};

struct ModelConfig {
  int64_t vocabulary = 0;
  int64_t width = 64;
  std::string positions =
      "learned";           // a table of `max_length` vectors; "rope": q and k are rotated; "none"
  int64_t max_length = 0;  // of the table
  int64_t mlp = 2;         // MLP width over model width
};

/// One State a block.
struct ModelState {
  std::vector<State> blocks;
  int64_t position() const { return blocks.empty() ? 0 : blocks.front().position; }
};

class LanguageModel : public torch::nn::Module {
 public:
  /// Weights come from PyTorch's default generator (torch::manual_seed).
  LanguageModel(const ModelConfig& config, const std::vector<std::shared_ptr<Mixer>>& mixers);

  /// tokens [B,T] int64 -> logits [B,T,vocabulary]. Throws Error when T exceeds a learned position
  /// table.
  Tensor forward(const Tensor& tokens);
  /// The same at `rows` (int64 [n], positions of tokens.flatten()) -> [n,vocabulary]. Mixers see
  /// every token; what comes after the last of them, which no other token reads, is computed at
  /// these alone.
  Tensor forward_at(const Tensor& tokens, const Tensor& rows);

  ModelState initial_state(int64_t batch) const;
  /// tokens [B] int64 -> logits [B,vocabulary]. Throws Error past the end of a learned position
  /// table.
  Tensor step(const Tensor& tokens, ModelState& state);
  /// Bytes of the state of one sequence after t tokens.
  int64_t state_bytes(int64_t t) const;

  const ModelConfig& config() const { return config_; }
  int64_t parameter_count() const;

 private:
  Tensor embed(const Tensor& tokens, int64_t start);  // [B,T] -> [B,T,width]
  Tensor head(const Tensor& x);                       // [...,width] -> [...,vocabulary]

  ModelConfig config_;
  Tensor embedding_, positions_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<RmsNorm> norm_;
  torch::nn::Linear head_{nullptr};
};

/// Builds the model of a `[model]` table: width, heads, positions, token_shift, mlp, max_length
/// (default `length`) and an array `blocks`, each with `mixer`, `repeat` and the mixer's own keys.
/// Throws Error on an unknown key or a bad value.
std::shared_ptr<LanguageModel> make_model(config::Table& table, int64_t vocabulary, int64_t length);

}  // namespace hopmix::nn

#include "hopmix/nn/model.h"

#include "hopmix/nn/heads.h"

namespace hopmix::nn {

Block::Block(int64_t width, int64_t mlp, std::shared_ptr<Mixer> mixer) : mixer_(std::move(mixer)) {
  register_module("mixer", mixer_);
  mixer_norm_ = register_module("mixer_norm", std::make_shared<RmsNorm>(width));
  if (mlp > 0) {
    mlp_norm_ = register_module("mlp_norm", std::make_shared<RmsNorm>(width));
    up_ = register_module("up", linear(width, mlp * width, /*bias=*/true));
    down_ = register_module("down", linear(mlp * width, width, /*bias=*/true));
  }
}

Tensor Block::feed_forward(const Tensor& x) {
  if (!mlp_norm_) return x;
  return x + down_(torch::gelu(up_(mlp_norm_->forward(x))));
}

Tensor Block::forward(const Tensor& x, Context& context) {
  return feed_forward(context.wanted(x) + mixer_->forward(mixer_norm_->forward(x), context));
}

Tensor Block::step(const Tensor& x, State& state, Context& context) {
  return feed_forward(x + mixer_->step(mixer_norm_->forward(x), state, context));
}

LanguageModel::LanguageModel(const ModelConfig& config,
                             const std::vector<std::shared_ptr<Mixer>>& mixers)
    : config_(config) {
  embedding_ =
      register_parameter("embedding", torch::randn({config.vocabulary, config.width}) * 0.16);
  if (config.positions == "learned") {
    positions_ =
        register_parameter("positions", torch::randn({config.max_length, config.width}) * 0.1);
  }
  for (const std::shared_ptr<Mixer>& mixer : mixers) {
    blocks_.push_back(register_module("blocks_" + std::to_string(blocks_.size()),
                                      std::make_shared<Block>(config.width, config.mlp, mixer)));
  }
  norm_ = register_module("norm", std::make_shared<RmsNorm>(config.width));
  head_ = register_module("head", linear(config.width, config.vocabulary, /*bias=*/true));
}

Tensor LanguageModel::embed(const Tensor& tokens, int64_t start) {
  const Tensor x = torch::embedding(embedding_, tokens);
  if (!positions_.defined()) return x;
  const int64_t end = start + tokens.size(1);
  if (end > config_.max_length) {
    throw Error(
        "position " + std::to_string(end - 1) + ": the model's table of learned positions holds " +
        std::to_string(config_.max_length) + " (model.max_length); use positions = \"rope\" or " +
        "\"none\" for longer sequences");
  }
  return x + positions_.slice(0, start, end);
}

Tensor LanguageModel::forward(const Tensor& tokens) {
  Context context;
  Tensor x = embed(tokens, 0);
  for (const std::shared_ptr<Block>& block : blocks_) x = block->forward(x, context);
  return head(x);
}

Tensor LanguageModel::forward_at(const Tensor& tokens, const Tensor& rows) {
  Context context;
  Tensor x = embed(tokens, 0);
  for (const std::shared_ptr<Block>& block : blocks_) {
    if (block == blocks_.back()) context.rows = rows;
    x = block->forward(x, context);
  }
  return head(x);
}

Tensor LanguageModel::head(const Tensor& x) { return head_(norm_->forward(x)); }

ModelState LanguageModel::initial_state(int64_t batch) const {
  ModelState state;
  for (const std::shared_ptr<Block>& block : blocks_) {
    state.blocks.push_back(block->mixer().initial_state(batch));
  }
  return state;
}

Tensor LanguageModel::step(const Tensor& tokens, ModelState& state) {
  Context context;
  Tensor x = embed(tokens.unsqueeze(1), state.position()).squeeze(1);
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->step(x, state.blocks[i], context);
  return head(x);
}

int64_t LanguageModel::state_bytes(int64_t t) const {
  int64_t total = 0;
  for (const std::shared_ptr<Block>& block : blocks_) total += block->mixer().state_bytes(t);
  return total;
}

int64_t LanguageModel::parameter_count() const {
  int64_t total = 0;
  for (const Tensor& parameter : parameters()) total += parameter.numel();
  return total;
}

std::shared_ptr<LanguageModel> make_model(config::Table& table, int64_t vocabulary,
                                          int64_t length) {
  ModelConfig config;
  config.vocabulary = vocabulary;
  config.width = table.get_at_least("width", config.width, 1);
  config.positions = table.get_choice("positions", config.positions, {"learned", "rope", "none"});
  config.mlp = table.get_at_least("mlp", config.mlp, 0);
  if (config.positions == "learned") {
    config.max_length = table.get_at_least("max_length", length, 1);
  } else if (table.has("max_length")) {
    throw table.bad("max_length",
                    "is for learned positions alone, here they are " + config.positions);
  }

  BlockDefaults defaults;
  defaults.width = config.width;
  defaults.length = length;
  defaults.heads = table.get_at_least("heads", defaults.heads, 1);
  defaults.token_shift = table.get("token_shift", defaults.token_shift);
  defaults.rope = config.positions == "rope";

  std::vector<std::shared_ptr<Mixer>> mixers;
  for (config::Table& block : table.tables("blocks")) {
    block.require("mixer");  // the first key that an error lists
    const int64_t repeat = block.get_at_least("repeat", 1, 1);
    for (int64_t i = 0; i < repeat; ++i) mixers.push_back(make_mixer(block, defaults));
    block.finish();
  }
  if (mixers.empty()) throw table.bad("blocks", "needs at least one [[model.blocks]] with a mixer");
  table.finish();
  return std::make_shared<LanguageModel>(config, mixers);
}

}  // namespace hopmix::nn

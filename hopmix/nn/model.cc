#include "hopmix/nn/model.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <map>
#include <set>

#include "hopmix/base/memory_size.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

namespace {

constexpr int64_t kMostBlocks = 10'000, kMostPositions = int64_t{1} << 24;

// A pass without gradients bypasses autograd, whose bookkeeping takes a fifth of a step.
class BelowAutograd {
 public:
  BelowAutograd() {
    if (!torch::GradMode::is_enabled()) below_.emplace();
  }

 private:
  std::optional<at::AutoDispatchBelowADInplaceOrView> below_;
};

}  // namespace

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
  return x + nn::feed_forward(mlp_norm_->forward(x), up_, down_);
}

Tensor Block::forward(const Tensor& x, Context& context) {
  const Tensor y = mixer_->forward(mixer_norm_->forward(x), context);
  return feed_forward(mixer_->one_vector_a_hop() ? y : context.wanted(x) + y);
}

Tensor Block::step(const Tensor& x, State& state, Context& context) {
  const Tensor y = mixer_->step(mixer_norm_->forward(x), state, context);
  return feed_forward(mixer_->one_vector_a_hop() ? y : x + y);
}

Tensor Block::step_each(const Tensor& x, std::span<State* const> states,
                        std::span<Context> contexts) {
  const Tensor y = mixer_->step_each(mixer_norm_->forward(x), states, contexts);
  return feed_forward(mixer_->one_vector_a_hop() ? y : x + y);
}

Tensor Block::prefill(const Tensor& x, State& state, Context& context) {
  const Tensor y = mixer_->prefill(mixer_norm_->forward(x), state, context);
  return feed_forward(mixer_->one_vector_a_hop() ? y : x + y);
}

LanguageModel::LanguageModel(const ModelConfig& config,
                             const std::vector<std::shared_ptr<Mixer>>& mixers)
    : config_(config) {
  const TaskShape& task = config.task;
  check_weight({task.vocabulary, config.width});
  embedding_ =
      register_parameter("embedding", torch::randn({task.vocabulary, config.width}) * 0.16);
  for (const config::TaskField& field : task.fields) {
    Linear map{nullptr};
    Tensor table;
    if (field.of_tokens) {
      map = register_module(field.name, linear(config.width, config.width));
    } else {
      check_weight({field.size, config.width});
      table = register_parameter(field.name, torch::randn({field.size, config.width}) * 0.16);
    }
    field_maps_.push_back(map);
    field_tables_.push_back(table);
  }
  if (config.positions == "learned") {
    check_weight({config.max_length, config.width});
    positions_ =
        register_parameter("positions", torch::randn({config.max_length, config.width}) * 0.1);
  }
  for (const std::shared_ptr<Mixer>& mixer : mixers) {
    blocks_.push_back(register_module("blocks_" + std::to_string(blocks_.size()),
                                      std::make_shared<Block>(config.width, config.mlp, mixer)));
  }
  norm_ = register_module("norm", std::make_shared<RmsNorm>(config.width));
  const int64_t heads = config.shared_head ? 1 : task.readouts;
  head_ = register_module("head", linear(config.width, heads * task.vocabulary, /*bias=*/true));
}

Tensor LanguageModel::embed(const Tensor& tokens, const Starts& starts) {
  const int64_t fields = static_cast<int64_t>(field_maps_.size());
  Tensor x = torch::embedding(embedding_, fields > 0 ? tokens.select(2, 0) : tokens);
  for (int64_t f = 0; f < fields; ++f) {
    const Tensor numbers = tokens.select(2, f + 1);
    Linear& map = field_maps_[static_cast<size_t>(f)];
    x = x + (map ? map(torch::embedding(embedding_, numbers))
                 : torch::embedding(field_tables_[static_cast<size_t>(f)], numbers));
  }
  if (!positions_.defined()) return x;
  const int64_t time = tokens.size(1);
  check_position(starts.last(time));
  if (starts.shared()) return x + positions_.narrow(0, starts.positions()[0], time);
  return x + torch::embedding(positions_, starts.of_tokens(time).to(positions_.device()));
}

void LanguageModel::check_position(int64_t position) const {
  if (!positions_.defined() || position < config_.max_length) return;
  throw Error(
      "position " + std::to_string(position) + ": the model's table of learned positions holds " +
      std::to_string(config_.max_length) + " (model.max_length); use positions = \"rope\" " +
      "or \"none\" for longer sequences");
}

void LanguageModel::check_length(int64_t tokens) const {
  check_position(tokens - 1);
  for (const std::shared_ptr<Block>& block : blocks_) block->mixer().check_length(tokens);
}

void LanguageModel::check_step(int64_t position) const {
  check_position(position);
  for (const std::shared_ptr<Block>& block : blocks_) block->mixer().check_step(position);
}

void LanguageModel::check_state(const ModelState& state) const {
  if (state.blocks.size() != blocks_.size()) {
    throw Error("it has " + std::to_string(state.blocks.size()) + " blocks, but the model has " +
                std::to_string(blocks_.size()));
  }
  check_length(state.position());
  for (size_t b = 0; b < blocks_.size(); ++b) {
    try {
      if (state.blocks[b].position != state.position()) throw Error("it has another position");
      blocks_[b]->mixer().check_state(state.blocks[b]);
    } catch (const Error& error) {
      throw Error("block " + std::to_string(b) + ": " + error.what());
    }
  }
}

namespace {

Context context_of(const Tensor& tokens, const std::optional<Tensor>& cu_seqlens) {
  Context context;
  if (cu_seqlens) context.packing = Packing(*cu_seqlens, tokens);
  return context;
}

}  // namespace

std::vector<Tensor> LanguageModel::run_blocks(const Tensor& tokens,
                                              const std::optional<Tensor>& cu_seqlens) {
  Context context = context_of(tokens, cu_seqlens);
  std::vector<Tensor> after = {embed(tokens, context.packing)};
  for (const std::shared_ptr<Block>& block : blocks_) {
    after.push_back(block->forward(after.back(), context));
  }
  return after;
}

Tensor LanguageModel::run_blocks_at(const Tensor& tokens, const Tensor& rows,
                                    const std::optional<Tensor>& cu_seqlens) {
  Context context = context_of(tokens, cu_seqlens);
  Tensor x = embed(tokens, context.packing);
  for (const std::shared_ptr<Block>& block : blocks_) {
    if (block == blocks_.back()) context.rows = rows;
    x = block->forward(x, context);
  }
  return x;
}

Tensor LanguageModel::forward(const Tensor& tokens, const std::optional<Tensor>& cu_seqlens) {
  return head(run_blocks(tokens, cu_seqlens));
}

Tensor LanguageModel::forward_at(const Tensor& tokens, const Tensor& rows,
                                 const std::optional<Tensor>& cu_seqlens) {
  if (config_.task.readouts > 1) {
    return forward(tokens, cu_seqlens).flatten(0, 2).index_select(0, rows);
  }
  return head({run_blocks_at(tokens, rows, cu_seqlens)});
}

namespace {

// Under autocast, in the type of a linear map.
Scored score_rows(const Tensor& x, const std::pair<Tensor, Tensor>& head, const Tensor& targets,
                  const std::optional<Tensor>& row_weights) {
  const Tensor rows = as_product_type(x);
  std::optional<Tensor> weights = row_weights;
  if (weights) {
    weights =
        weights->to(rows.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32);
  }
  const auto [loss, losses, guesses] = ops::head_loss(
      rows, as_product_type(head.first), as_product_type(head.second), targets, weights);
  return {loss, losses, guesses};
}

}  // namespace

Scored LanguageModel::loss_at(const Tensor& tokens, const Tensor& rows, const Tensor& targets,
                              const std::optional<Tensor>& row_weights,
                              const std::optional<Tensor>& cu_seqlens) {
  if (config_.task.readouts == 1) {
    const Tensor x = norm_->forward(run_blocks_at(tokens, rows, cu_seqlens));
    return score_rows(x, head_of_readout(0), targets, row_weights);
  }
  const double share = 1 / static_cast<double>(std::max<int64_t>(rows.numel(), 1));
  return readouts_at(
      run_blocks(tokens, cu_seqlens), rows, targets,
      row_weights ? *row_weights : torch::full({rows.numel()}, share, torch::kFloat64));
}

// One readout at a time, or all together if they share a head.
Scored LanguageModel::readouts_at(const std::vector<Tensor>& after, const Tensor& rows,
                                  const Tensor& targets, const Tensor& row_weights) {
  const int64_t readouts = config_.task.readouts;
  const Tensor readout = rows.remainder(readouts);
  const Tensor place = rows.div(readouts, /*rounding_mode=*/"floor");
  std::vector<Tensor> order, x;  // the rows of each readout, and the input of its head
  for (int64_t m = 0; m < readouts; ++m) {
    order.push_back((readout == m).nonzero().squeeze(1));
    const Tensor all = input_of_readout(after, m).flatten(0, 1);
    x.push_back(norm_->forward(all.index_select(0, place.index_select(0, order.back()))));
  }
  if (config_.shared_head) {
    order = {torch::cat(order)};
    x = {torch::cat(x)};
  }
  Tensor loss;
  std::vector<Tensor> losses, guesses;
  for (size_t m = 0; m < x.size(); ++m) {
    const Scored part =
        score_rows(x[m], head_of_readout(static_cast<int64_t>(m)),
                   targets.index_select(0, order[m]), row_weights.index_select(0, order[m]));
    loss = loss.defined() ? loss + part.loss : part.loss;
    losses.push_back(part.losses);
    guesses.push_back(part.guesses);
  }
  const Tensor all = torch::cat(order).argsort();
  return {loss, torch::cat(losses).index_select(0, all), torch::cat(guesses).index_select(0, all)};
}

Tensor LanguageModel::head(const std::vector<Tensor>& after) {
  const int64_t readouts = config_.task.readouts;
  std::vector<Tensor> logits;
  for (int64_t m = 0; m < readouts; ++m) {
    const Tensor x = norm_->forward(input_of_readout(after, m));
    const auto [weight, bias] = head_of_readout(m);
    logits.push_back(apply_linear(x, weight, bias));
  }
  return readouts == 1 ? logits[0] : torch::stack(logits, -2);
}

Tensor LanguageModel::input_of_readout(const std::vector<Tensor>& after, int64_t m) const {
  const size_t block = config_.read_after.empty()
                           ? after.size() - 1
                           : static_cast<size_t>(config_.read_after[static_cast<size_t>(m)]);
  return blocks_.back()->mixer().one_vector_a_hop() ? after[block].select(-2, m) : after[block];
}

std::pair<Tensor, Tensor> LanguageModel::head_of_readout(int64_t m) const {
  if (config_.shared_head || config_.task.readouts == 1) return {head_->weight, head_->bias};
  const int64_t v = config_.task.vocabulary;
  return {head_->weight.narrow(0, m * v, v), head_->bias.narrow(0, m * v, v)};
}

ModelState LanguageModel::initial_state(int64_t batch) const {
  ModelState state;
  for (const std::shared_ptr<Block>& block : blocks_) {
    state.blocks.push_back(block->mixer().initial_state(batch));
  }
  return state;
}

Tensor LanguageModel::step(const Tensor& tokens, ModelState& state) {
  const BelowAutograd below;
  Context context;
  std::vector<Tensor> after = {embed(tokens.unsqueeze(1), state.position()).squeeze(1)};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    after.push_back(blocks_[i]->step(after.back(), state.blocks[i], context));
  }
  return head(after);
}

Tensor LanguageModel::step(const Tensor& tokens, std::span<ModelState* const> states) {
  if (tokens.size(0) != static_cast<int64_t>(states.size())) {
    throw Error("states: must have one per row of tokens, " + std::to_string(tokens.size(0)) +
                ", but has " + std::to_string(states.size()));
  }
  if (states.empty()) throw Error("tokens: must hold at least one sequence");
  if (states.size() == 1) return step(tokens, *states[0]);
  const BelowAutograd below;
  std::set<const ModelState*> known;
  for (const ModelState* state : states) {
    if (!known.insert(state).second) throw Error("states: must be distinct, but one appears twice");
  }
  std::vector<State*> of_block;
  const auto select = [&](size_t block) {
    of_block.clear();
    for (ModelState* state : states) of_block.push_back(&state->blocks[block]);
    return std::span<State* const>(of_block);
  };
  std::vector<Context> contexts(states.size());
  std::vector<Tensor> after = {embed(tokens.unsqueeze(1), Starts(select(0))).squeeze(1)};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    after.push_back(blocks_[i]->step_each(after.back(), select(i), contexts));
  }
  return head(after);
}

Tensor LanguageModel::prefill(const Tensor& tokens, ModelState& state) {
  const BelowAutograd below;
  const bool shares = std::any_of(blocks_.begin(), blocks_.end(),
                                  [](const auto& block) { return block->mixer().shares_cache(); });
  if (shares) {
    Tensor logits;
    for (int64_t t = 0; t < tokens.size(1); ++t) logits = step(tokens.select(1, t), state);
    return logits;
  }
  Context context;
  Tensor x = embed(tokens, state.position());
  std::vector<Tensor> after = {x.select(1, -1)};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i]->prefill(x, state.blocks[i], context);
    after.push_back(x.select(1, -1));
  }
  return head(after);
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

namespace {

// Before the others are made: whether `repeat` blocks like the first fit the memory.
void check_repeat(const config::Table& table, const Mixer& mixer, const ModelConfig& config,
                  int64_t repeat) {
  int64_t numbers = 2 * config.mlp * config.width * config.width;
  for (const Tensor& parameter : mixer.parameters()) numbers += parameter.numel();
  const int64_t bytes = saturating_product(saturating_product(numbers, sizeof(float)), repeat);
  if (bytes <= memory_size() / 2) return;
  throw Error(table.path() + ": with repeat = " + std::to_string(repeat) + ", model.width = " +
              std::to_string(config.width) + " and model.mlp = " + std::to_string(config.mlp) +
              ", the weights take " + format_bytes(bytes) +
              ", too much for this machine's memory, " + format_bytes(memory_size()));
}

// The number of blocks before each readout of a task with several.
void read_readouts(config::Table& table, const std::vector<MixerPlan>& mixers,
                   ModelConfig& config) {
  config.shared_head = table.get("shared_head", config.shared_head);
  config.read_after = table.integers("read_after");
  if (config.read_after.empty()) return;
  const auto blocks = static_cast<int64_t>(mixers.size());
  if (mixers.back().one_vector_a_hop) {
    throw table.bad("read_after",
                    "must be omitted: the last block returns a vector for each readout");
  }
  const bool fit = static_cast<int64_t>(config.read_after.size()) == config.task.readouts &&
                   std::all_of(config.read_after.begin(), config.read_after.end(),
                               [blocks](int64_t after) { return after >= 0 && after <= blocks; });
  if (!fit) {
    throw table.bad("read_after", "must be " + std::to_string(config.task.readouts) +
                                      " block counts, one per readout, each from 0 to " +
                                      std::to_string(blocks));
  }
}

}  // namespace

std::shared_ptr<LanguageModel> make_model(config::Table& table, const TaskShape& task) {
  ModelConfig config;
  config.task = task;
  config.width = table.get_between("width", config.width, 1, kMostSize);
  config.positions = table.get_choice("positions", config.positions, {"learned", "rope", "none"});
  config.mlp = table.get_between("mlp", config.mlp, 0, kMostSize);
  if (config.positions == "learned") {
    config.max_length = table.get_between("max_length", task.length, 1, kMostPositions);
  } else if (table.has("max_length")) {
    throw table.bad("max_length", "applies only to learned positions, not to " + config.positions);
  }

  BlockDefaults defaults;
  defaults.width = config.width;
  defaults.length = task.length;
  defaults.readouts = task.readouts;
  defaults.heads = table.get_between("heads", defaults.heads, 1, kMostSize);
  defaults.token_shift = table.get("token_shift", defaults.token_shift);
  defaults.rope = config.positions == "rope";
  defaults.end = config.max_length;

  std::vector<MixerPlan> plans;
  std::map<size_t, std::pair<config::Table, int64_t>> repeated;  // by the first of its plans
  for (config::Table& block : table.tables("blocks")) {
    block.require("mixer");  // read first, so that errors list it first
    const int64_t repeat = block.get_between("repeat", 1, 1, kMostBlocks);
    repeated.insert({plans.size(), {block, repeat}});
    for (int64_t i = 0; i < repeat; ++i) {
      if (!plans.empty() && plans.back().one_vector_a_hop) {
        throw block.bad(
            "mixer",
            "follows a block that returns one vector per hop, which must be the last block");
      }
      plans.push_back(read_mixer(block, defaults));
    }
    block.finish();
  }
  if (plans.empty()) throw table.bad("blocks", "needs at least one [[model.blocks]] with a mixer");
  if (task.readouts > 1) read_readouts(table, plans, config);
  table.finish();
  std::vector<std::shared_ptr<Mixer>> mixers;
  for (size_t n = 0; n < plans.size(); ++n) {
    mixers.push_back(plans[n].build());
    const auto found = repeated.find(n);
    if (found == repeated.end()) continue;
    check_repeat(found->second.first, *mixers[n], config, found->second.second);
  }
  return std::make_shared<LanguageModel>(config, mixers);
}

}  // namespace hopmix::nn

// A language model built from a config: embeddings, positions, pre-norm blocks that each name a
// mixer, and a head.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hopmix/config/config.h"
#include "hopmix/config/task_field.h"
#include "hopmix/nn/linear.h"
#include "hopmix/nn/mixer.h"
#include "hopmix/nn/norm.h"
#include "hopmix/nn/positions.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

/// x + mixer(norm(x)), then x + mlp(norm(x)) with a GELU MLP of `mlp` times the width (none if 0).
class Block : public torch::nn::Module {
 public:
  Block(int64_t width, int64_t mlp, std::shared_ptr<Mixer> mixer);

  Tensor forward(const Tensor& x, Context& context);             // [B,T,width] -> its wanted rows
  Tensor step(const Tensor& x, State& state, Context& context);  // [B,width]
  Tensor step_each(const Tensor& x, std::span<State* const> states, std::span<Context> contexts);
  Tensor prefill(const Tensor& x, State& state, Context& context);  // [B,T,width]
  const Mixer& mixer() const { return *mixer_; }

 private:
  Tensor feed_forward(const Tensor& x);

  std::shared_ptr<Mixer> mixer_;
  std::shared_ptr<RmsNorm> mixer_norm_, mlp_norm_;
  Linear up_{nullptr}, down_{nullptr};
};

/// What a task requires of its model.
struct TaskShape {
  int64_t vocabulary = 0;
  int64_t length = 0;  // of training sequences
  std::vector<config::TaskField> fields = {};
  int64_t readouts = 1;  // answers per position
};

struct ModelConfig {
  TaskShape task;
  int64_t width = 64;
  std::string positions =
      "learned";           // a table of `max_length` vectors; "rope": q and k are rotated; "none"
  int64_t max_length = 0;  // size of the table
  int64_t mlp = 2;         // MLP width over model width
  std::vector<int64_t> read_after = {};  // for each readout, the number of blocks before it; empty:
                                         // all read the output of the last block
  bool shared_head = false;              // one head for all readouts instead of one each
};

/// One State per block. A copy is a fork (nn/mixer.h).
struct ModelState {
  std::vector<State> blocks;
  int64_t position() const { return blocks.empty() ? 0 : blocks.front().position; }
};

/// A model's predictions at some positions compared with the targets: the training loss and, per
/// position, the cross entropy (in nats) and the most probable token.
struct Scored {
  Tensor loss;     // [], float32 (or float64 as the model)
  Tensor losses;   // [n], the same; without a gradient
  Tensor guesses;  // [n], int64
};

class LanguageModel : public torch::nn::Module {
 public:
  /// Weights are drawn from PyTorch's default generator (torch::manual_seed).
  LanguageModel(const ModelConfig& config, const std::vector<std::shared_ptr<Mixer>>& mixers);

  /// tokens [B,T] int64 (or [B,T,1 + fields]) -> logits [B,T,vocabulary], or
  /// [B,T,readouts,vocabulary] with several readouts. With cu_seqlens (int64 [N+1], rising from 0
  /// to T), B is 1 and the N packed sequences [cu_seqlens[n], cu_seqlens[n+1]) do not see each
  /// other: each starts at position 0, as if it were alone. Throws Error if a sequence is longer
  /// than a learned position table.
  Tensor forward(const Tensor& tokens, const std::optional<Tensor>& cu_seqlens = {});
  /// The same at `rows` (int64 [n], indices into the flattened logits) -> [n,vocabulary]. Mixers
  /// see every token. With one readout, what follows the last mixer, which no other
  /// token reads, is computed only at these rows.
  Tensor forward_at(const Tensor& tokens, const Tensor& rows,
                    const std::optional<Tensor>& cu_seqlens = {});

  /// forward_at compared with `targets` (int64 [n]) without materializing the logits:
  /// ops::head_loss. The loss is the sum of row_weights [n] times the losses, or their mean.
  Scored loss_at(const Tensor& tokens, const Tensor& rows, const Tensor& targets,
                 const std::optional<Tensor>& row_weights = {},
                 const std::optional<Tensor>& cu_seqlens = {});

  ModelState initial_state(int64_t batch) const;
  /// tokens [B] int64 (or [B,1 + fields]) -> logits [B,vocabulary], or [B,readouts,vocabulary].
  /// Throws Error past the end of a learned position table.
  Tensor step(const Tensor& tokens, ModelState& state);
  /// Steps B >= 1 sequences at different positions, each with its own state of one sequence: row b
  /// of `tokens` belongs to states[b]. Equal to `step` of each alone, up to rounding; reads weights
  /// once for all, and copies no state to stack it. Throws Error past the end of a learned position
  /// table, before any state changes.
  Tensor step(const Tensor& tokens, std::span<ModelState* const> states);
  /// The next T >= 1 tokens of each sequence, [B,T] (or [B,T,1 + fields]) -> the result of `step`
  /// for the last of them. Equal to T steps up to rounding, and much faster unless a layer reads a
  /// published cache.
  Tensor prefill(const Tensor& tokens, ModelState& state);
  /// Throws Error if a sequence cannot have this many tokens, because of a learned position table
  /// or a mixer's limit.
  void check_length(int64_t tokens) const;
  /// Throws Error if no step can be taken at this position. Quick, and changes no state.
  void check_step(int64_t position) const;
  /// Throws Error unless `state`, of one sequence, could be one of this model's (Mixer's
  /// check_state).
  void check_state(const ModelState& state) const;
  /// Bytes of the state of one sequence after t tokens.
  int64_t state_bytes(int64_t t) const;

  const ModelConfig& config() const { return config_; }
  int64_t parameter_count() const;

 private:
  // tokens [B,T,...] -> [B,T,width]; `starts`: the position of each row's first token, or of all.
  Tensor embed(const Tensor& tokens, const Starts& starts);
  void check_position(int64_t position) const;  // position of a token
  // The outputs of the embedding and each block, [B,T,width]; the last may have one vector per hop.
  std::vector<Tensor> run_blocks(const Tensor& tokens, const std::optional<Tensor>& cu_seqlens);
  // The last block's output at rows, [n,width], in a model with one readout.
  Tensor run_blocks_at(const Tensor& tokens, const Tensor& rows,
                       const std::optional<Tensor>& cu_seqlens);
  // The outputs of the blocks, [...,width] -> logits.
  Tensor head(const std::vector<Tensor>& after);
  // The input of readout m, from the outputs of the blocks, and its part of the head.
  Tensor input_of_readout(const std::vector<Tensor>& after, int64_t m) const;
  std::pair<Tensor, Tensor> head_of_readout(int64_t m) const;  // weight and bias
  Scored readouts_at(const std::vector<Tensor>& after, const Tensor& rows, const Tensor& targets,
                     const Tensor& row_weights);

  ModelConfig config_;
  Tensor embedding_, positions_;
  std::vector<Tensor> field_tables_;  // per field, unless it is of_tokens
  std::vector<Linear> field_maps_;    // per field, if it is of_tokens
  std::vector<std::shared_ptr<Block>> blocks_;
  std::shared_ptr<RmsNorm> norm_;
  Linear head_{nullptr};
};

/// Builds the model of a `[model]` table: width, heads, positions, token_shift, mlp, max_length
/// (default: the task's length), read_after and shared_head (for a task with several readouts), and
/// an array `blocks`, each with `mixer`, `repeat` and the mixer's own keys. Throws Error on an
/// unknown key or an invalid value.
std::shared_ptr<LanguageModel> make_model(config::Table& table, const TaskShape& task);

}  // namespace hopmix::nn

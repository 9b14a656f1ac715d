// The interface of every token mixer: a pass over a whole sequence for training, steps for
// decoding, and a description of what it reads and keeps.
#pragma once

#include "hopmix/nn/torch.h"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hopmix/nn/packing.h"

namespace hopmix::nn {

using torch::Tensor;

struct SharedCache;  // nn/shared_cache.h

/// Passed through the layers in one forward pass or one step.
struct Context {
  std::map<std::string, std::shared_ptr<SharedCache>> mem;  // what layers published, by name
  Packing packing;  // in a forward pass: the sequences packed in a row
  Tensor rows;      // int64 [n], indices into the flattened [B,T]: outputs wanted, if not all

  /// y [B,T,...], or [n,...] of it if only `rows` are wanted.
  Tensor wanted(const Tensor& y) const {
    return rows.defined() ? y.flatten(0, 1).index_select(0, rows) : y;
  }
};

/// A mixer's memory between steps: the number of tokens read, and named tensors whose first
/// dimension is the batch. A copy is a fork: the two share memory until one of them is advanced,
/// which then writes to memory of its own.
struct State {
  int64_t position = 0;
  std::map<std::string, Tensor> tensors;

  /// Bytes held, for the whole batch.
  int64_t bytes() const;
};

/// The type of a state's tensor: that of the parameters; float32, or float64 as the parameters, for
/// sums over time; int32 for positions.
enum class StateType { kParameters, kSums, kPositions };

torch::TensorOptions state_options(const torch::TensorOptions& parameters, StateType type);

/// A tensor of a state before the first token: zeros [B,sizes...].
struct StatePart {
  std::vector<int64_t> sizes;
  StateType type = StateType::kParameters;
};
using StateParts = std::map<std::string, StatePart>;

/// Call before writing to `tensor` of a state: copies it if a fork or a view shares its memory.
void make_own(Tensor& tensor);

class PatternCache;  // nn/pattern_cache.h

/// A causal token mixer on [B,T,width].
class Mixer : public torch::nn::Module {
 public:
  /// x [B,T,width] -> the wanted rows of [B,T,width]. Output t depends only on x_0..x_t; with
  /// `context.packing`, only on those of its own sequence, as if it were alone.
  virtual Tensor forward(const Tensor& x, Context& context) = 0;

  /// The state of `batch` sequences before the first token: what the constructor declared.
  virtual State initial_state(int64_t batch) const;

  /// x [B,width], token `state.position` of each sequence -> [B,width], equal to that row of
  /// `forward` up to rounding. Advances the state by one token. For decoding only: no gradients
  /// flow through the state. The default implementation is a prefill of one token: a mixer
  /// implements one of the two.
  virtual Tensor step(const Tensor& x, State& state, Context& context);

  /// x [B,T,width], T >= 1, the next T tokens of each sequence -> [B,T,width]. Equivalent to T
  /// steps, up to rounding, including the state. The default implementation steps token by token.
  virtual Tensor prefill(const Tensor& x, State& state, Context& context);

  /// Steps B sequences at different positions: row b of x [B,width] is the next token of states[b],
  /// the state of one sequence, with contexts[b]. The states must be distinct. -> [B,width], `step`
  /// of each up to rounding; advances all. The default implementation works row by row, unless the
  /// states can be stacked.
  virtual Tensor step_each(const Tensor& x, std::span<State* const> states,
                           std::span<Context> contexts);

  /// Whether a step is the same at every position, keeps tensor sizes, and shares nothing with
  /// other layers. Sequences at different positions can then step as one batch.
  virtual bool same_step_anywhere() const { return false; }

  /// Throws Error if a sequence cannot have this many tokens.
  virtual void check_length(int64_t /*tokens*/) const {}

  /// Whether it publishes or reads a cache. Such a model processes each token through all layers
  /// before the next token, because readers need the caches as they were at that token.
  virtual bool shares_cache() const { return false; }

  /// Bytes that the state of one sequence holds after t tokens: exactly what `step` allocates. By
  /// default those of the initial state.
  virtual int64_t state_bytes(int64_t t) const;

  /// What it keeps of the past by a pattern, if that is its state.
  virtual const PatternCache* past() const { return nullptr; }

  /// Throws Error if no step can be taken at this position, for example because a pattern cannot be
  /// computed there. Quick, and changes no state.
  virtual void check_step(int64_t position) const;

  /// Throws Error unless `state`, of one sequence, could be the state at its position: exactly the
  /// tensors of one, their types and sizes, and integers that lie within what they index.
  virtual void check_state(const State& state) const;

  /// Whether outputs are [...,hops,width] instead: one vector per readout of the model. Allowed
  /// only in a model's last block.
  virtual bool one_vector_a_hop() const { return false; }

 protected:
  /// Declares tensors of the state; a later declaration of a name counts.
  void keep(const StateParts& parts);

  /// Of the parameters.
  torch::TensorOptions options() const { return parameters().front().options(); }

 private:
  StateParts kept_;
};

}  // namespace hopmix::nn

// What every token mixer offers: a pass over a whole sequence for training, one step at a time for
// decoding, and a description of what it reads and keeps.
#pragma once

#include "hopmix/nn/torch.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "hopmix/nn/packing.h"

namespace hopmix::nn {

using torch::Tensor;

/// The best positions of tokens by an attention's scores; undefined if nobody asked for them.
struct Selection {
  Tensor indices;  // int32 [B,T,H,kappa], best first, -1 padded; in a step of the newest token, T=1
  Tensor pointers;  // in a step: int32 [B,n,H,kept], of all tokens
};

/// What a layer publishes for later layers to read, under a name (`mem` in a config). In a step q
/// is of the newest token, [B,1,H,D], and k and v are of all tokens.
struct SharedCache {
  Tensor q;                      // [B,T,H,D]
  Tensor k, v;                   // [B,T,KV heads,D]
  Selection with_self, earlier;  // the token itself among those compared; strictly earlier ones
  std::map<std::string, Tensor> neighborhoods;  // by what was asked: made once, read by many

  const Selection& selection(bool include_self) const { return include_self ? with_self : earlier; }
};

/// Travels through the layers of one forward pass or one step.
struct Context {
  std::map<std::string, SharedCache> mem;
  Packing packing;  // of a forward pass: the sequences of a row
  Tensor rows;      // int64 [n], positions of the flattened [B,T]: the outputs wanted, if not all

  /// y [B,T,...], or [n,...] of it where only `rows` are wanted.
  Tensor wanted(const Tensor& y) const {
    return rows.defined() ? y.flatten(0, 1).index_select(0, rows) : y;
  }
};

/// What a mixer remembers between steps: how many tokens it has taken in, and named tensors whose
/// first dimension is the batch. A copy is a fork: it shares the memory until one of the two goes
/// on, which then writes into memory of its own.
struct State {
  int64_t position = 0;
  std::map<std::string, Tensor> tensors;

  /// Bytes held, for the whole batch.
  int64_t bytes() const;
};

/// Before `tensor` of a state is written to: a copy, if a fork or a view refers to its memory too.
void make_own(Tensor& tensor);

/// A causal token mixer on [B,T,width].
class Mixer : public torch::nn::Module {
 public:
  /// x [B,T,width] -> what is wanted of [B,T,width]; output t depends on x_0..x_t only, and with
  /// `context.packing` on those of its own sequence, as if it were alone.
  virtual Tensor forward(const Tensor& x, Context& context) = 0;

  /// The state before the first token, of `batch` sequences.
  virtual State initial_state(int64_t batch) const = 0;

  /// x [B,width], token `state.position` of each sequence -> [B,width], equal to that row of
  /// `forward` to rounding. Advances the state by one token. For decoding: no gradients reach
  /// through the state.
  virtual Tensor step(const Tensor& x, State& state, Context& context) = 0;

  /// x [B,T,width], T >= 1, the next T tokens of each sequence -> [B,T,width]: what T steps give,
  /// to rounding, and the state after them. Token by token, unless a mixer has a quicker way.
  virtual Tensor prefill(const Tensor& x, State& state, Context& context);

  /// One token of each of B sequences that stand at positions of their own: row b of x [B,width] is
  /// the next of states[b], the state of one sequence, and goes with contexts[b]. No two states are
  /// the same. -> [B,width], `step` of each to rounding, and advances all. Row by row, unless the
  /// states can be stacked or a mixer has a quicker way.
  virtual Tensor step_each(const Tensor& x, std::span<State* const> states,
                           std::span<Context> contexts);

  /// Whether a step is the same at every position, its tensors keep their sizes and nothing is
  /// shared with other layers: then sequences at any positions take a step as one batch.
  virtual bool same_step_anywhere() const { return false; }

  /// Throws Error where a sequence cannot have so many tokens.
  virtual void check_length(int64_t /*tokens*/) const {}

  /// Whether it publishes a cache or reads one. The layers of such a model take a token in one
  /// after another before the next one: of each, a reader needs the caches as they were.
  virtual bool shares_cache() const { return false; }

  /// Bytes that the state of one sequence holds after t tokens: exactly what `step` allocates.
  virtual int64_t state_bytes(int64_t t) const = 0;

  /// Whether outputs are [...,hops,width] instead: a vector for each readout of the model. Only the
  /// last block of a model may be so.
  virtual bool one_vector_a_hop() const { return false; }

 protected:
  /// Bytes of one element of the parameters.
  int64_t element_size() const { return parameters().front().element_size(); }
  torch::TensorOptions options() const { return parameters().front().options(); }
};

}  // namespace hopmix::nn

// The input of a mixer's projections: each token with the one before it.
#pragma once

#include <span>

#include "hopmix/nn/heads.h"

namespace hopmix::nn {

/// The input of a mixer's projections: x [B,T,width] -> concat(x_i, x_{i-1}) [B,T,2 width], with
/// x_{-1} = 0 before the first token of a sequence; without token shift, x itself.
Tensor shift_tokens(const HeadsConfig& config, const Tensor& x, const Packing& packing = {});

/// The same for the next tokens of a stream; keeps the last one in state["last"] for the call
/// after.
Tensor shift_more_tokens(const HeadsConfig& config, const Tensor& x, State& state);

/// The same for one token [B,width] -> [B,1,input width].
Tensor shift_tokens_step(const HeadsConfig& config, const Tensor& x, State& state);

/// The same for one token of each of these sequences.
Tensor shift_tokens_each(const HeadsConfig& config, const Tensor& x,
                         std::span<State* const> states);

/// What it adds to a state: x_{-1}.
StateParts token_shift_state(const HeadsConfig& config);

}  // namespace hopmix::nn

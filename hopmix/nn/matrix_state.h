// The matrix that each head of a linear recurrence carries from token to token.
#pragma once

#include <algorithm>
#include <optional>
#include <tuple>

#include "hopmix/nn/mixer.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

/// state["S"] [B,heads,keys,values], zero, float32 for narrower parameters: it sums over all time.
struct MatrixState {
  int64_t heads, keys, values;

  void init(int64_t batch, torch::TensorOptions options, State& state) const {
    const auto type = options.dtype() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    state.tensors["S"] = torch::zeros({batch, heads, keys, values}, options.dtype(type));
  }
  /// Of one sequence, beside parameters of `element` bytes.
  int64_t bytes(int64_t element) const {
    return heads * keys * values * std::max<int64_t>(element, 4);
  }
};

/// What the recurrence takes beside q, k and v, as ops::matrix_step_; undefined where it has none.
struct MatrixGates {
  Tensor log_decay = {}, beta = {};  // [B,T,heads] or [B,T,heads,keys]; [B,T,heads]
  std::optional<double> scale = {};
};

/// q, k, v [B,T,heads,...] -> o [B,T,heads,values], and `state` (null: begin with zero, keep
/// nothing) moves on: one token in place, more by the operator `whole` of (initial state) -> (o,
/// state).
template <typename Whole>
Tensor advance_matrix(Tensor* state, const Tensor& q, const Tensor& k, const Tensor& v,
                      const MatrixGates& gates, const Whole& whole) {
  const bool differentiates = torch::GradMode::is_enabled() && q.requires_grad();
  if (state != nullptr && q.size(1) == 1 && !differentiates) {
    const auto token = [](const Tensor& x) {
      return x.defined() ? std::optional(x.squeeze(1)) : std::nullopt;
    };
    make_own(*state);
    return ops::matrix_step_(q.squeeze(1), k.squeeze(1), v.squeeze(1), token(gates.log_decay),
                             token(gates.beta), *state, gates.scale)
        .unsqueeze(1);
  }
  const auto [o, last] = whole(state ? std::optional(*state) : std::nullopt);
  if (state != nullptr) *state = last;
  return o;
}

}  // namespace hopmix::nn

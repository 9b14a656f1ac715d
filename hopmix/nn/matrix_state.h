// The matrix state of each head in linear recurrences.
#pragma once

#include <optional>
#include <tuple>

#include "hopmix/nn/mixer.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

/// The state "S" of recurrences with a matrix a head, zero at first.
inline StateParts matrix_state(int64_t heads, int64_t keys, int64_t values) {
  return {{"S", {{heads, keys, values}, StateType::kSums}}};
}

/// The recurrence's inputs besides q, k and v, as for ops::matrix_step_; undefined where it has
/// none.
struct MatrixGates {
  Tensor log_decay = {}, beta = {};  // [B,T,heads] or [B,T,heads,keys]; [B,T,heads]
  std::optional<double> scale = {};
};

/// q, k, v [B,T,heads,...] -> o [B,T,heads,values]. Advances `state` (null: starts from zero and
/// keeps nothing): one token in place, several by the operator `whole`, which maps an initial state
/// to (o, state).
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

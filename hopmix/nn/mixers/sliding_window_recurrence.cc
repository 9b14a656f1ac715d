#include "hopmix/nn/mixers/sliding_window_recurrence.h"

#include "hopmix/nn/recurrent_state.h"
#include "hopmix/nn/token_shift.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

SlidingWindowRecurrence::SlidingWindowRecurrence(const SlidingWindowRecurrenceConfig& config)
    : GatedLinearRecurrence(config), block_(config.block) {
  if (block_ < 1) throw Error("block = " + std::to_string(block_) + ": must be at least 1");
  keep({{"own", {{config.width}, StateType::kSums}}});
}

Tensor SlidingWindowRecurrence::forward(const Tensor& x, Context& context) {
  const auto [a, u] = project(shift_tokens(config_, x, context.packing));
  const Tensor y = std::get<0>(
      ops::sliding_window_recurrence(a, u, block_, {}, /*start=*/0, context.packing.cu_seqlens()));
  return out_(context.wanted(y));
}

Tensor SlidingWindowRecurrence::step(const Tensor& x, State& state, Context&) {
  const auto [a, u] = project(shift_tokens_step(config_, x, state));
  const Tensor decay = a.squeeze(1), input = as_state(u.squeeze(1));
  Tensor &y = state.tensors["y"], &own = state.tensors["own"];
  if (state.position % block_ == 0) {  // only what started one block ago is still visible
    y = decay * own + input;
    own = input.clone();
  } else {
    y = decay * y + input;
    own = decay * own + input;
  }
  ++state.position;
  return out_(y.to(x.scalar_type()));
}

Tensor SlidingWindowRecurrence::prefill(const Tensor& x, State& state, Context&) {
  const auto [a, u] = project(shift_more_tokens(config_, x, state));
  const Tensor before = torch::stack({state.tensors["y"], state.tensors["own"]}, 1);
  const auto [y, last] = ops::sliding_window_recurrence(a, u, block_, before, state.position);
  state.tensors["y"] = last.select(1, 0).clone();
  state.tensors["own"] = last.select(1, 1).clone();
  state.position += x.size(1);
  return out_(y);
}

MixerEntry sliding_window_recurrence_entry() {
  return {"sliding_window_recurrence",
          "y_t = a_t y_{t-1} + b_t v_t, begun at the start of the block before",
          "1",
          "2",
          "Secrieru et al. 2025",
          [](config::Table& table, const BlockDefaults& defaults) {
            SlidingWindowRecurrenceConfig config{read_gated_recurrence(table, defaults)};
            config.block = table.get_between("block", config.block, 1, kMostSize);
            return plan<SlidingWindowRecurrence>(config);
          }};
}

}  // namespace hopmix::nn

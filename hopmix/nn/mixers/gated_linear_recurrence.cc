#include "hopmix/nn/mixers/gated_linear_recurrence.h"

#include "hopmix/nn/token_shift.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

GatedLinearRecurrence::GatedLinearRecurrence(const GatedLinearRecurrenceConfig& config)
    : config_(config) {
  check_heads(config);
  if (config.decay != "channel" && config.decay != "head") {
    throw Error("decay = '" + config.decay + "': must be channel or head");
  }
  const int64_t input = config.input_width(), width = config.width;
  const int64_t gates = config.decay == "channel" ? width : config.heads;
  value_ = register_module("value", linear(input, width));
  gates_ = register_module("gates", linear(input, 2 * gates, /*bias=*/true));
  if (config.decay == "channel") {
    torch::NoGradGuard no_grad;
    gates_->bias.narrow(0, 0, gates).copy_(torch::linspace(0.0, 5.0, gates));
  }
  out_ = register_module("out", linear(width, width));
  keep(token_shift_state(config));
  keep({{"y", {{width}, StateType::kSums}}});
}

std::pair<Tensor, Tensor> GatedLinearRecurrence::project(const Tensor& input) {
  std::vector<Tensor> gates = torch::sigmoid(gates_(input)).chunk(2, -1);
  if (config_.decay == "head") {
    for (Tensor& gate : gates) gate = gate.repeat_interleave(config_.head_width(), -1);
  }
  return {gates[0], gates[1] * value_(input)};
}

Tensor GatedLinearRecurrence::forward(const Tensor& x, Context& context) {
  const auto [a, u] = project(shift_tokens(config_, x, context.packing));
  const Tensor y = std::get<0>(ops::linear_recurrence(a, u, {}, context.packing.cu_seqlens()));
  return out_(context.wanted(y));
}

Tensor GatedLinearRecurrence::step(const Tensor& x, State& state, Context&) {
  const auto [a, u] = project(shift_tokens_step(config_, x, state));
  Tensor& y = state.tensors["y"];
  y = a.squeeze(1) * y + u.squeeze(1);
  ++state.position;
  return out_(y.to(x.scalar_type()));
}

Tensor GatedLinearRecurrence::prefill(const Tensor& x, State& state, Context&) {
  const auto [a, u] = project(shift_more_tokens(config_, x, state));
  Tensor y, &last = state.tensors["y"];
  std::tie(y, last) = ops::linear_recurrence(a, u, last);
  state.position += x.size(1);
  return out_(y);
}

GatedLinearRecurrenceConfig read_gated_recurrence(config::Table& table,
                                                  const BlockDefaults& defaults) {
  GatedLinearRecurrenceConfig config{read_heads_without_rope(table, defaults)};
  config.decay = table.get_choice("decay", config.decay, {"channel", "head"});
  return config;
}

MixerEntry gated_linear_recurrence_entry() {
  return {"gated_linear_recurrence",
          "y_t = a_t y_{t-1} + b_t v_t",
          "1",
          "1",
          "Gu et al. 2022 (diagonal SSM), De et al. 2024",
          [](config::Table& table, const BlockDefaults& defaults) {
            return plan<GatedLinearRecurrence>(read_gated_recurrence(table, defaults));
          }};
}

}  // namespace hopmix::nn

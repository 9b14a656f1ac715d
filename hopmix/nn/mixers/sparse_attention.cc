#include "hopmix/nn/mixers/sparse_attention.h"

#include "hopmix/nn/by_sequence.h"

namespace hopmix::nn {

// A prompt this many times shorter than the cached past is faster token by token.
constexpr int64_t kWorthJoining = 16;

SparseAttention::SparseAttention(const SparseAttentionConfig& config)
    : config_(config), rows_(config.pattern), past_(config.pattern, config.end) {
  check_heads(config);
  qkv_ = register_module("qkv", linear(config.input_width(), 3 * config.width));
  out_ = register_module("out", linear(config.width, config.width));
}

Tensor SparseAttention::forward(const Tensor& x, Context& context) {
  const Packing& packing = context.packing;
  const std::vector<Tensor> qkv =
      project_qkv(qkv_, config_, shift_tokens(config_, x, packing), packing);
  const Tensor y = ops::sparse_attention(qkv[0], qkv[1], qkv[2], rows_.at(x.size(1), packing),
                                         /*include_self=*/true, {}, packing.cu_seqlens());
  return out_(context.wanted(y.flatten(2)));
}

State SparseAttention::initial_state(int64_t batch) const {
  State state;
  init_token_shift(config_, batch, options(), state);
  for (const char* name : {"k", "v"}) {
    state.tensors[name] = torch::empty({batch, 0, config_.heads, config_.head_width()}, options());
  }
  return state;
}

Tensor SparseAttention::attend(const std::vector<Tensor>& qkv, State& state) {
  const Tensor y =
      token_attention(qkv[0].squeeze(1), past_.held_rows(state, "k"), past_.held_rows(state, "v"),
                      past_.slots_read(state), std::pair(qkv[1], qkv[2]));
  past_.append(state, {{"k", qkv[1].squeeze(1)}, {"v", qkv[2].squeeze(1)}});
  ++state.position;
  return y.flatten(1);
}

Tensor SparseAttention::step(const Tensor& x, State& state, Context&) {
  const Tensor input = shift_tokens_step(config_, x, state);
  return out_(attend(project_qkv(qkv_, config_, input, state.position), state));
}

Tensor SparseAttention::step_each(const Tensor& x, std::span<State* const> states,
                                  std::span<Context>) {
  const Tensor input = shift_tokens_each(config_, x, states);
  const std::vector<Tensor> qkv = project_qkv(qkv_, config_, input, Starts(states));
  return out_(
      by_sequence(states.size(), [&](size_t b) { return attend(row_of(qkv, b), *states[b]); }));
}

Tensor SparseAttention::prefill(const Tensor& x, State& state, Context& context) {
  const int64_t t = state.position, time = x.size(1), behind = past_.held(t);
  if (behind > kWorthJoining * time) return Mixer::prefill(x, state, context);
  const std::vector<Tensor> qkv =
      project_qkv(qkv_, config_, shift_more_tokens(config_, x, state), t);
  Tensor y;
  if (t == 0) {
    y = ops::sparse_attention(qkv[0], qkv[1], qkv[2], rows_.at(time), /*include_self=*/true);
  } else {
    const auto [row_ptr, cols] = past_.joined_rows(state, time);
    const Tensor k = past_.held_rows(state, "k"), v = past_.held_rows(state, "v");
    y = ops::sparse_attention(torch::cat({torch::zeros_like(k), qkv[0]}, 1),
                              torch::cat({k, qkv[1]}, 1), torch::cat({v, qkv[2]}, 1),
                              {row_ptr, cols}, /*include_self=*/true)
            .slice(1, behind);
  }
  past_.extend(state, {{"k", qkv[1]}, {"v", qkv[2]}});
  state.position += time;
  return out_(y.flatten(2));
}

int64_t SparseAttention::state_bytes(int64_t t) const {
  return past_.bytes(t, 2 * config_.width * element_size()) +
         token_shift_elements(config_) * element_size();
}

MixerEntry sparse_attention_entry() {
  return {"sparse_attention",
          "y_i = sum_{j in S_i, j=i} softmax(q_i.k_j) v_j",
          "|S_i| + 1",
          "2 cache(S)",
          "Child et al. 2019",
          [](config::Table& table, const BlockDefaults& defaults) {
            SparseAttentionConfig config{read_heads(table, defaults)};
            config.pattern = read_pattern(table, "strided(8) | window(8)", defaults);
            return std::make_shared<SparseAttention>(config);
          }};
}

MixerEntry local_attention_entry() {
  return {"local_attention",
          "y_i = sum_{i-w<j<=i} softmax(q_i.k_j) v_j",
          "w",
          "2(w-1)",
          "Beltagy et al. 2020",
          [](config::Table& table, const BlockDefaults& defaults) {
            SparseAttentionConfig config{read_heads(table, defaults)};
            const int64_t window = table.get_at_least("window", 64, 2);
            config.pattern = "window(" + std::to_string(window - 1) + ")";
            return std::make_shared<SparseAttention>(config);
          }};
}

}  // namespace hopmix::nn

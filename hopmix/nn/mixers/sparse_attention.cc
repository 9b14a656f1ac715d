#include "hopmix/nn/mixers/sparse_attention.h"

#include "hopmix/nn/token_attention.h"
#include "hopmix/nn/token_shift.h"

namespace hopmix::nn {

// A prompt this many times shorter than the cached past is faster token by token.
constexpr int64_t kWorthJoining = 16;

SparseAttention::SparseAttention(const SparseAttentionConfig& config)
    : CachedMixer(config, {config.pattern, head_entries(config, {"k", "v"}), config.end}),
      rows_(config.pattern) {
  qkv_ = register_module("qkv", linear(config.input_width(), 3 * config.width));
  out_ = register_module("out", linear(config.width, config.width));
}

Tensor SparseAttention::forward(const Tensor& x, Context& context) {
  const Packing& packing = context.packing;
  const std::vector<Tensor> qkv = project(shift_tokens(heads_, x, packing), packing);
  return read_out(
      context.wanted(ops::sparse_attention(qkv[0], qkv[1], qkv[2], rows_.at(x.size(1), packing),
                                           /*include_self=*/true, {}, packing.cu_seqlens())));
}

Tensor SparseAttention::attend(const std::vector<Tensor>& qkv, State& state, Context&) {
  const Tensor y =
      token_attention(qkv[0].squeeze(1), cache_.held_rows(state, "k"), cache_.held_rows(state, "v"),
                      cache_.slots_read(state), std::pair(qkv[1], qkv[2]));
  cache_.append(state, {qkv[1], qkv[2]});
  return y;
}

Tensor SparseAttention::prefill(const Tensor& x, State& state, Context& context) {
  const int64_t t = state.position, time = x.size(1), behind = cache_.held(t);
  if (behind > kWorthJoining * time) return Mixer::prefill(x, state, context);
  const std::vector<Tensor> qkv = project(shift_more_tokens(heads_, x, state), t);
  Tensor y;
  if (t == 0) {
    y = ops::sparse_attention(qkv[0], qkv[1], qkv[2], rows_.at(time), /*include_self=*/true);
  } else {
    const auto [row_ptr, cols] = cache_.joined_rows(state, time);
    const Tensor k = cache_.held_rows(state, "k"), v = cache_.held_rows(state, "v");
    y = ops::sparse_attention(torch::cat({torch::zeros_like(k), qkv[0]}, 1),
                              torch::cat({k, qkv[1]}, 1), torch::cat({v, qkv[2]}, 1),
                              {row_ptr, cols}, /*include_self=*/true)
            .slice(1, behind);
  }
  cache_.extend(state, {qkv[1], qkv[2]});
  state.position += time;
  return read_out(y);
}

MixerEntry sparse_attention_entry() {
  return {"sparse_attention",
          "y_i = sum_{j in S_i, j=i} softmax(q_i.k_j) v_j",
          "|S_i| + 1",
          "2 cache(S)",
          "Child et al. 2019",
          [](config::Table& table, const BlockDefaults& defaults) {
            const HeadsConfig heads = read_heads(table, defaults);
            return plan<SparseAttention>(SparseAttentionConfig{
                heads, read_pattern(table, "strided(8) | window(8)", defaults)});
          }};
}

MixerEntry local_attention_entry() {
  return {"local_attention",
          "y_i = sum_{i-w<j<=i} softmax(q_i.k_j) v_j",
          "w",
          "2(w-1)",
          "Beltagy et al. 2020",
          [](config::Table& table, const BlockDefaults& defaults) {
            const HeadsConfig heads = read_heads(table, defaults);
            const int64_t window = table.get_at_least("window", 64, 2);
            const Pattern pattern("window(" + std::to_string(window - 1) + ")", defaults.length);
            return plan<SparseAttention>(SparseAttentionConfig{heads, pattern});
          }};
}

}  // namespace hopmix::nn

#include "hopmix/nn/mixers/linear_attention.h"

#include <algorithm>

#include "hopmix/nn/token_shift.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {
namespace {

const std::vector<std::string> kFeatureMaps = {"elu", "relu", "softmax", "identity"};

}  // namespace

LinearAttention::LinearAttention(const LinearAttentionConfig& config) : config_(config) {
  check_heads(config);
  if (std::count(kFeatureMaps.begin(), kFeatureMaps.end(), config.feature_map) == 0) {
    throw Error("feature_map = '" + config.feature_map +
                "': must be elu, relu, softmax or identity");
  }
  if (config.normalizer && config.feature_map == "identity") {
    throw Error(
        "normalizer = true: divides by a sum that must be positive, so feature_map must not be "
        "identity");
  }
  qkv_ = register_module("qkv", linear(config.input_width(), 3 * config.width));
  out_ = register_module("out", linear(config.width, config.width));
  if (!config.normalizer) {
    norm_ = register_module("norm", std::make_shared<RmsNorm>(config.head_width()));
  }
  keep(token_shift_state(config));
  const int64_t keys = config.head_width();
  keep(matrix_state(config.heads, keys, config.normalizer ? keys + 1 : keys));
}

Tensor LinearAttention::features(const Tensor& x) const {
  if (config_.feature_map == "elu") return torch::elu(x) + 1;
  if (config_.feature_map == "relu") return torch::relu(x);
  return config_.feature_map == "softmax" ? torch::softmax(x, -1).to(x.scalar_type()) : x;
}

Tensor LinearAttention::mix(const Tensor& input, Tensor* state,
                            const std::optional<Tensor>& cu_seqlens) {
  std::vector<Tensor> parts =
      linear_parts(input, {qkv_->weight}, std::vector<int64_t>(3, config_.width));
  for (Tensor& part : parts) part = split_heads(part, config_.heads);
  Tensor v = parts[2];
  // A channel of ones sums the weights themselves.
  if (config_.normalizer) v = torch::constant_pad_nd(v, {0, 1}, 1);
  const Tensor q = features(parts[0]), k = features(parts[1]);
  Tensor o = advance_matrix(state, q, k, v, {}, [&](const std::optional<Tensor>& before) {
    return ops::linear_attention(q, k, v, {}, before, cu_seqlens);
  });
  if (config_.normalizer) {
    const int64_t width = config_.head_width();
    o = o.narrow(-1, 0, width) / (o.narrow(-1, width, 1) + 1e-6);
  } else {
    o = norm_->forward(o).to(o.scalar_type());
  }
  return o.flatten(2);
}

Tensor LinearAttention::forward(const Tensor& x, Context& context) {
  const Packing& packing = context.packing;
  const Tensor input = shift_tokens(config_, x, packing);
  return out_(context.wanted(mix(input, nullptr, packing.cu_seqlens())));
}

Tensor LinearAttention::prefill(const Tensor& x, State& state, Context&) {
  const Tensor input = shift_more_tokens(config_, x, state);
  state.position += x.size(1);
  return out_(mix(input, &state.tensors["S"]));
}

MixerEntry linear_attention_entry() {
  return {"linear_attention",
          "o_i = phi(q_i) sum_{j<=i} phi(k_j)^T v_j",
          "1",
          "head width / T",
          "Katharopoulos et al. 2020 (arXiv 2006.16236)",
          [](config::Table& table, const BlockDefaults& defaults) {
            LinearAttentionConfig config{read_heads_without_rope(table, defaults)};
            config.feature_map = table.get_choice("feature_map", config.feature_map, kFeatureMaps);
            config.normalizer = table.get("normalizer", config.normalizer);
            return plan<LinearAttention>(config);
          }};
}

}  // namespace hopmix::nn

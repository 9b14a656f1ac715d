#include "hopmix/nn/token_attention.h"

#include <cmath>

#include "hopmix/ops/ops.h"

namespace hopmix::nn {

Tensor token_scores(const Tensor& q, const Tensor& k) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  const int64_t kv_heads = k.size(2);
  const Tensor grouped = (q * scale).unflatten(1, {kv_heads, q.size(1) / kv_heads});
  return torch::matmul(grouped, k.permute({0, 2, 3, 1})).flatten(1, 2);
}

Tensor token_softmax(const Tensor& q, const Tensor& k) {
  return torch::softmax(token_scores(q, k), -1);
}

Tensor token_softmax(const Tensor& q, const Tensor& k, const Tensor& own) {
  return torch::softmax(torch::cat({token_scores(q, k), token_scores(q, own)}, -1), -1);
}

Tensor token_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const std::optional<Tensor>& slots,
                       const std::optional<std::pair<Tensor, Tensor>>& own) {
  if (!torch::GradMode::is_enabled() || !q.requires_grad()) {
    const torch::NoGradGuard no_grad;
    if (!own) return ops::attention_step(q, k, v, slots);
    return ops::attention_step(q, k, v, slots, own->first.squeeze(1), own->second.squeeze(1));
  }
  const auto read = [&](const Tensor& all) { return slots ? all.index_select(1, *slots) : all; };
  if (!own) return token_sum(token_softmax(q, read(k)), read(v));
  return token_sum(token_softmax(q, read(k), own->first), read(v), own->second);
}

Tensor token_sum(const Tensor& p, const Tensor& v) {
  const int64_t kv_heads = v.size(2);
  const Tensor grouped = p.unflatten(1, {kv_heads, p.size(1) / kv_heads});
  return torch::matmul(grouped, v.transpose(1, 2)).flatten(1, 2);
}

Tensor token_sum(const Tensor& p, const Tensor& v, const Tensor& own) {
  const int64_t c = v.size(1), group = p.size(1) / own.size(2);
  const Tensor newest = own.squeeze(1);
  return token_sum(p.narrow(-1, 0, c), v) +
         p.narrow(-1, c, 1) * (group == 1 ? newest : newest.repeat_interleave(group, 1));
}

}  // namespace hopmix::nn

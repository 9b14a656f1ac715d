#include "hopmix/nn/fenwick_state.h"

#include <bit>

#include "hopmix/base/error.h"
#include "hopmix/ops/fenwick.h"

namespace hopmix::nn {

LevelFactors::LevelFactors(int64_t width, int64_t heads, int64_t levels) {
  map_ = register_module("map", linear(width, heads * levels));
  weight_ = register_parameter("weight", torch::ones({heads, levels}));
}

Tensor LevelFactors::forward(const Tensor& x) {
  return torch::softplus(weight_ * map_(x).unflatten(-1, {weight_.size(0), weight_.size(1)}));
}

void check_levels(int64_t levels, int64_t tokens) {
  const int64_t needed = ops::fenwick_levels(tokens);
  if (levels >= needed) return;
  throw Error("levels = " + std::to_string(levels) + ": must be at least " +
              std::to_string(needed) + " for " + std::to_string(tokens) + " tokens");
}

StateParts fenwick_state(int64_t heads, int64_t keys, int64_t values) {
  return {{"S", {{0, heads, keys, values}, StateType::kSums}}};
}

int64_t fenwick_bytes(const State& initial, int64_t t) {
  const Tensor& s = initial.tensors.at("S");
  return std::popcount(static_cast<uint64_t>(t)) * c10::multiply_integers(s.sizes().slice(2)) *
         s.element_size();
}

Tensor fenwick_step(const Tensor& carried, const Tensor& written, const Tensor& q,
                    const Tensor& factors, State& state) {
  const int64_t t = state.position;
  check_levels(factors.size(-1), t + 1);
  std::vector<int64_t> levels = {0};
  ops::for_buckets(t, [&](int64_t bit) { levels.push_back(bit + 1); });
  const Tensor all = torch::cat({written.unsqueeze(1), carried}, 1);  // [B,n,H,K,V]
  const Tensor read = torch::matmul(q.unsqueeze(1).unsqueeze(3), all).squeeze(3);
  const Tensor chosen = factors.index_select(2, torch::tensor(levels)).permute({0, 2, 1});
  const int64_t joined = ops::fenwick_completes(t) + 1;
  state.tensors["S"] =
      torch::cat({all.slice(1, 0, joined).sum(1, /*keepdim=*/true), all.slice(1, joined)}, 1);
  return (chosen.unsqueeze(-1) * read).sum(1);
}

}  // namespace hopmix::nn

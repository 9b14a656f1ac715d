#include "hopmix/nn/mixers/mura.h"

#include <cmath>

#include "hopmix/nn/selection.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {
namespace {

// Computed once, by the first layer that needs it.
Tensor neighborhood(const MuraConfig& config, const Packing& packing, SharedCache& cache) {
  std::string key = config.cumulative ? "cumulative" : "exact";
  key += config.include_self ? "" : " earlier";
  for (const int64_t width : config.widths) key += ' ' + std::to_string(width);
  Tensor& made = cache.neighborhoods[key];
  if (!made.defined()) {
    made = ops::neighborhood(cache.selection(config.include_self).indices, config.widths,
                             config.cumulative, packing.cu_seqlens());
  }
  return made;
}

// One list per head of k if the publisher has that many heads, otherwise one per query head.
Tensor by_kv_head(const Tensor& indices, const Tensor& k, int64_t heads) {
  const int64_t lists = indices.size(2);
  return lists == k.size(2) ? indices : indices.repeat_interleave(heads / lists, 2);
}

// One token's softmax attention to listed rows: q [B,H,D], k and v [B,n,KV heads,D], indices int32
// [B,H,W] -> [B,H,D].
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& indices) {
  const int64_t kv_heads = k.size(2), group = q.size(1) / kv_heads, width = indices.size(2);
  const Tensor list = indices.to(torch::kInt64);
  const Tensor of_group = list.clamp_min(0).reshape({q.size(0), kv_heads, group * width, 1});
  const auto rows = [&](const Tensor& x) {  // [B,H,W,D], the only copy
    const Tensor at = of_group.expand({-1, -1, -1, x.size(3)});
    return x.transpose(1, 2).gather(2, at).unflatten(2, {group, width}).flatten(1, 2);
  };
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
  const Tensor scores = torch::einsum("bhd,bhwd->bhw", {q * scale, rows(k)});
  // A token without entries gets 0 instead of 0 / 0.
  const Tensor p =
      torch::softmax(scores.masked_fill(list < 0, -INFINITY), -1).masked_fill(list < 0, 0);
  return torch::einsum("bhw,bhwd->bhd", {p, rows(v)});
}

}  // namespace

Mura::Mura(const MuraConfig& config) : config_(config), past_("dense") {
  const Publication& from = *config.publication;
  q_ = register_module("q", linear(config.input_width(), config.heads * from.key_width));
  if (config.own_kv) {
    kv_ = register_module(
        "kv", linear(config.input_width(), from.kv_heads * (from.key_width + from.value_width)));
  }
  out_ = register_module("out", linear(config.heads * from.value_width, config.width));
}

Tensor Mura::queries(const Tensor& input, const Starts& start) {
  const Tensor q = split_heads(q_(input), config_.heads);
  return config_.publication->rope ? apply_rope(q, start) : q;
}

std::pair<Tensor, Tensor> Mura::keys_and_values(const Tensor& input, const Starts& start,
                                                const SharedCache& cache) {
  if (!config_.own_kv) {
    return config_.gradient ? std::pair{cache.k, cache.v}
                            : std::pair{cache.k.detach(), cache.v.detach()};
  }
  const Publication& from = *config_.publication;
  const std::vector<Tensor> kv = kv_(input).split_with_sizes(
      {from.kv_heads * from.key_width, from.kv_heads * from.value_width}, -1);
  const Tensor k = split_heads(kv[0], from.kv_heads);
  return {from.rope ? apply_rope(k, start) : k, split_heads(kv[1], from.kv_heads)};
}

Tensor Mura::forward(const Tensor& x, Context& context) {
  SharedCache& cache = context.mem.at(config_.mem);
  const Packing& packing = context.packing;
  const Tensor input = shift_tokens(config_, x, packing);
  const auto [k, v] = keys_and_values(input, packing, cache);
  const Tensor indices = neighborhood(config_, packing, cache);
  const Tensor y =
      ops::gather_attention(queries(input, packing), k, v, by_kv_head(indices, k, config_.heads),
                            {}, packing.cu_seqlens());
  return out_(context.wanted(y.flatten(2)));
}

State Mura::initial_state(int64_t batch) const {
  State state;
  init_token_shift(config_, batch, options(), state);
  if (config_.own_kv) {
    const Publication& from = *config_.publication;
    state.tensors["k"] = torch::empty({batch, 0, from.kv_heads, from.key_width}, options());
    state.tensors["v"] = torch::empty({batch, 0, from.kv_heads, from.value_width}, options());
  }
  return state;
}

Tensor Mura::step(const Tensor& x, State& state, Context& context) {
  SharedCache& cache = context.mem.at(config_.mem);
  const Tensor input = shift_tokens_step(config_, x, state);
  const Tensor q = queries(input, state.position).squeeze(1);
  auto [k, v] = keys_and_values(input, state.position, cache);
  if (config_.own_kv) {
    past_.append(state, {{"k", k.squeeze(1)}, {"v", v.squeeze(1)}});
    k = state.tensors.at("k").narrow(1, 0, state.position + 1);
    v = state.tensors.at("v").narrow(1, 0, state.position + 1);
  }
  const Selection& selection = cache.selection(config_.include_self);
  const Tensor indices = token_neighborhood(selection.indices.squeeze(1), selection.pointers,
                                            config_.widths, config_.cumulative);
  ++state.position;
  const Tensor y = attend(q, k, v, indices.repeat_interleave(config_.heads / indices.size(1), 1));
  return out_(y.flatten(1));
}

int64_t Mura::state_bytes(int64_t t) const {
  const Publication& from = *config_.publication;
  const int64_t own = config_.own_kv ? from.kv_heads * (from.key_width + from.value_width) : 0;
  return token_shift_elements(config_) * element_size() + past_.bytes(t, own * element_size());
}

MixerEntry mura_entry() {
  return {"mura",
          "y_i = sum_{t in N(i)} softmax(q_i.k_t) v_t, N(i) by chains of top-k links",
          "sum of width products",
          "pointers",
          "Eitan et al. 2026 (MURA)",
          [](config::Table& table, const BlockDefaults& defaults) {
            MuraConfig config;
            config.publication = find_publication(table, *defaults.mem);
            config.mem = table.require("mem");
            config.width = defaults.width;
            config.heads = table.get_between("heads", config.publication->heads, 1, kMostSize);
            if (config.heads % config.publication->heads != 0) {
              throw table.bad("heads", "must be a multiple of the heads of mem '" + config.mem +
                                           "', " + std::to_string(config.publication->heads));
            }
            config.token_shift = table.get("token_shift", defaults.token_shift);
            config.widths = read_widths(table, config.widths);
            config.cumulative =
                table.get_choice("set", "cumulative", {"cumulative", "exact"}) == "cumulative";
            config.include_self = table.get("include_self", config.include_self);
            config.own_kv = table.get_choice("kv", "shared", {"shared", "own"}) == "own";
            config.gradient = table.get("gradient", config.gradient);
            if (config.own_kv && !config.gradient) {
              throw table.bad("gradient", "does not apply with kv = 'own'");
            }
            config.publication->ask(config.widths, config.include_self);
            return std::make_shared<Mura>(config);
          },
          /*reads_mem=*/true};
}

}  // namespace hopmix::nn

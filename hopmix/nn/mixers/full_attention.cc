#include "hopmix/nn/mixers/full_attention.h"

#include <algorithm>
#include <tuple>

#include "hopmix/nn/selection.h"
#include "hopmix/nn/shared_cache.h"
#include "hopmix/nn/token_attention.h"
#include "hopmix/nn/token_shift.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {
namespace {

// The entry that stores the pointers to tokens up to its own, or before it.
const char* pointers_name(bool self) { return self ? "pointers" : "earlier_pointers"; }

// k and v, then the links that readers of the publication follow.
std::vector<PatternCache::Entry> entries(const FullAttentionConfig& config) {
  const StatePart vectors{{config.kv_heads, config.key_width}};
  std::vector<PatternCache::Entry> all = {{"k", vectors}, {"v", vectors}};
  if (!config.publication) return all;
  for (const bool self : {true, false}) {
    const int64_t links = config.publication->selection(self).pointers;
    if (links == 0) continue;
    all.push_back({pointers_name(self), {{config.heads, links}, StateType::kPositions}});
  }
  return all;
}

}  // namespace

FullAttention::FullAttention(const FullAttentionConfig& config)
    : CachedMixer(config, {Pattern("dense", 1), entries(config)}),
      config_(config),
      asked_(config.publication.value_or(Publication())) {
  const int64_t parts = config.heads + 2 * config.kv_heads;
  qkv_ = register_module("qkv", linear(config.input_width(), parts * config.key_width));
  out_ = register_module("out", linear(config.heads * config.key_width, config.width));
}

std::vector<Tensor> FullAttention::project(const Tensor& input, const Starts& start) {
  const int64_t width = config_.key_width;
  std::vector<Tensor> parts =
      linear_parts(input, {qkv_->weight},
                   {config_.heads * width, config_.kv_heads * width, config_.kv_heads * width});
  for (Tensor& part : parts) part = part.unflatten(-1, {-1, width});
  if (config_.rope) rotate(parts, {0, 1}, start);
  return parts;
}

Tensor FullAttention::forward(const Tensor& x, Context& context) {
  const Packing& packing = context.packing;
  const std::vector<Tensor> qkv = project(shift_tokens(heads_, x, packing), packing);
  SharedCache cache;
  std::tie(cache.q, cache.k, cache.v) = std::tie(qkv[0], qkv[1], qkv[2]);
  const int64_t with_self = asked_.with_self.kappa, earlier = asked_.earlier.kappa;
  Tensor y;
  if (with_self > 0) {
    // One pass serves both selections: one more position yields the strictly earlier ones.
    const int64_t kappa = earlier > 0 ? std::max(with_self, earlier + 1) : with_self;
    std::tie(y, cache.with_self.indices) = ops::attention_topk(
        qkv[0], qkv[1], qkv[2], kappa, {}, /*include_self=*/true, packing.cu_seqlens());
    if (earlier > 0) {
      cache.earlier.indices = without_self(cache.with_self.indices, packing.positions(x.size(1)));
    }
  } else if (earlier > 0) {
    std::tie(y, cache.earlier.indices) = ops::attention_topk(
        qkv[0], qkv[1], qkv[2], earlier, {}, /*include_self=*/false, packing.cu_seqlens());
  } else {
    y = ops::attention(qkv[0], qkv[1], qkv[2], {}, packing.cu_seqlens());
  }
  if (shares_cache()) {
    context.mem[config_.mem] = std::make_shared<SharedCache>(std::move(cache));
  }
  return read_out(context.wanted(y));
}

Tensor FullAttention::attend(const std::vector<Tensor>& qkv, State& state, Context& context) {
  cache_.append(state, {qkv[1], qkv[2]});
  const auto with_newest = [&](const std::string& name) {
    return state.tensors.at(name).narrow(1, 0, state.position + 1);
  };
  const Tensor k = with_newest("k"), v = with_newest("v");
  if (!shares_cache()) return token_attention(qkv[0].squeeze(1), k, v);
  const Tensor scores = token_scores(qkv[0].squeeze(1), k);
  const auto cache = std::make_shared<SharedCache>();
  std::tie(cache->q, cache->k, cache->v) = std::tie(qkv[0], k, v);
  size_t entry = 2;  // the first links
  for (const bool self : {true, false}) {
    const Publication::Selected& wanted = asked_.selection(self);
    if (wanted.kappa == 0) continue;
    Selection& selection = self ? cache->with_self : cache->earlier;
    const Tensor among = self ? scores : scores.slice(2, 0, -1);
    selection.indices = best_positions(among, wanted.kappa).unsqueeze(1);
    if (wanted.pointers == 0) continue;
    cache_.append(state, {selection.indices.slice(3, 0, wanted.pointers)}, entry);
    selection.pointers = with_newest(cache_.name(entry++));
  }
  context.mem[config_.mem] = cache;
  return token_sum(torch::softmax(scores, -1), v);
}

Tensor FullAttention::prefill(const Tensor& x, State& state, Context& context) {
  if (shares_cache()) return Mixer::prefill(x, state, context);
  const int64_t t = state.position, time = x.size(1);
  const std::vector<Tensor> qkv = project(shift_more_tokens(heads_, x, state), t);
  cache_.extend(state, {qkv[1], qkv[2]});
  const auto with_newest = [&](const std::string& name) {
    return state.tensors.at(name).narrow(1, 0, t + time).transpose(1, 2);
  };
  // New token i reads up to t + i; with an empty past that is the causal mask.
  std::optional<Tensor> mask;
  if (t > 0) mask = torch::ones({time, t + time}, torch::kBool).tril(t);
  const Tensor y = torch::scaled_dot_product_attention(
      qkv[0].transpose(1, 2), with_newest("k"), with_newest("v"), mask, 0.0,
      /*is_causal=*/t == 0, {}, /*enable_gqa=*/config_.heads != config_.kv_heads);
  state.position += time;
  return read_out(y.transpose(1, 2));
}

void FullAttention::check_state(const State& state) const {
  Mixer::check_state(state);
  for (const bool self : {true, false}) {
    const auto found = state.tensors.find(pointers_name(self));
    if (found == state.tensors.end()) continue;
    const Tensor pointers = found->second.narrow(1, 0, state.position);
    const Tensor last = torch::arange(state.position).view({1, -1, 1, 1}) - (self ? 0 : 1);
    if ((pointers < -1).logical_or(pointers > last).any().item<bool>()) {
      throw Error(std::string("tensor '") + pointers_name(self) +
                  "' must hold earlier positions, or -1");
    }
  }
}

MixerEntry full_attention_entry() {
  return {"attention",
          "y_i = sum_{j<=i} softmax(q_i.k_j) v_j",
          "n",
          "2n",
          "Vaswani et al. 2017",
          [](config::Table& table, const BlockDefaults& defaults) {
            FullAttentionConfig config;
            config.width = defaults.width;
            config.heads = table.get_between("heads", defaults.heads, 1, kMostSize);
            config.token_shift = table.get("token_shift", defaults.token_shift);
            config.rope = table.get("rope", defaults.rope);
            if (!table.has("head_width")) check_heads(config);
            config.kv_heads = table.get_between("kv_heads", config.heads, 1, kMostSize);
            if (config.heads % config.kv_heads != 0) {
              throw table.bad("kv_heads", "must divide heads, " + std::to_string(config.heads));
            }
            config.key_width =
                table.get_between("head_width", config.width / config.heads, 1, kMostSize);
            if (config.rope && config.key_width % 2 != 0) {
              throw table.bad("head_width", "must be even for rope");
            }
            if (!table.has("mem")) return plan<FullAttention>(config);
            config.mem = table.require("mem");
            publish(table, *defaults.mem,
                    {.heads = config.heads,
                     .kv_heads = config.kv_heads,
                     .key_width = config.key_width,
                     .value_width = config.key_width,
                     .rope = config.rope});
            return MixerPlan{[config, mem = defaults.mem]() mutable {
              config.publication = mem->at(config.mem);
              return std::make_shared<FullAttention>(config);
            }};
          }};
}

}  // namespace hopmix::nn

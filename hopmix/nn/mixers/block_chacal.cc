#include "hopmix/nn/mixers/block_chacal.h"

#include "hopmix/nn/token_attention.h"
#include "hopmix/nn/token_shift.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

BlockChacal::BlockChacal(const BlockChacalConfig& config) : config_(config) {
  check_heads(config);
  qkv_ = register_module("qkv", linear(config.input_width(), 3 * config.width));
  out_ = register_module("out", linear(config.width, config.width));
  keep(token_shift_state(config));
  // Entries of the open block; of finished blocks; of what the open block reads from them (0 or 1).
  for (const char* name : {"k", "w", "block_k", "block_w", "read_k", "read_w"}) {
    keep({{name, {{0, config.heads, config.head_width()}}}});
  }
}

Tensor BlockChacal::forward(const Tensor& x, Context& context) {
  const Packing& packing = context.packing;
  const std::vector<Tensor> qkv =
      project_qkv(qkv_, config_, shift_tokens(config_, x, packing), packing);
  const Tensor y = ops::block_chacal(qkv[0], qkv[1], qkv[2], config_.gamma, config_.block, {},
                                     packing.cu_seqlens());
  return out_(context.wanted(y.flatten(2)));
}

Tensor BlockChacal::step(const Tensor& x, State& state, Context&) {
  const std::vector<Tensor> qkv =
      project_qkv(qkv_, config_, shift_tokens_step(config_, x, state), state.position);
  const Tensor q = qkv[0].squeeze(1);
  auto& kept = state.tensors;
  const int64_t blocks = kept["block_k"].size(1);
  if (blocks > 0 && state.position % config_.block == 0) {
    const Tensor weights = token_softmax(q, kept["block_k"]);
    kept["read_k"] = token_sum(weights, kept["block_k"]).unsqueeze(1);
    kept["read_w"] = token_sum(weights, kept["block_w"]).unsqueeze(1);
  }
  // The summary is one more past token, in front.
  const Tensor keys = torch::cat({kept["read_k"], kept["k"], qkv[1]}, 1);
  const Tensor past = torch::cat({kept["read_w"], kept["w"]}, 1);
  const auto [w, mix] = chacal_step(token_softmax(q, keys), past, qkv[2].squeeze(1), config_.gamma);
  kept["k"] = torch::cat({kept["k"], qkv[1]}, 1);
  kept["w"] = torch::cat({kept["w"], w.unsqueeze(1)}, 1);
  ++state.position;
  if (state.position % config_.block == 0) {
    for (const std::string name : {"k", "w"}) {
      Tensor& all = kept["block_" + name];
      all = torch::cat({all, kept[name].mean(1, /*keepdim=*/true)}, 1);
      kept[name] = torch::empty_like(kept[name].narrow(1, 0, 0));
      kept["read_" + name] = torch::empty_like(kept[name]);
    }
  }
  return out_(((1 - config_.gamma) * mix).flatten(1));
}

void BlockChacal::check_state(const State& state) const {
  Mixer::check_state(state);
  const int64_t blocks = state.position / config_.block, open = state.position % config_.block;
  const std::pair<const char*, int64_t> sizes[] = {
      {"", open}, {"block_", blocks}, {"read_", blocks > 0 && open > 0 ? 1 : 0}};
  for (const auto& [prefix, size] : sizes) {
    for (const char* name : {"k", "w"}) {
      if (state.tensors.at(std::string(prefix) + name).size(1) == size) continue;
      throw Error(std::string("tensor '") + prefix + name + "' must have " + std::to_string(size) +
                  " entries");
    }
  }
}

int64_t BlockChacal::state_bytes(int64_t t) const {
  const int64_t blocks = t / config_.block, open = t % config_.block;
  const int64_t read = blocks > 0 && open > 0 ? 1 : 0;
  return Mixer::state_bytes(t) + 2 * (blocks + open + read) * config_.width *
                                     static_cast<int64_t>(options().dtype().itemsize());
}

MixerEntry block_chacal_entry() {
  return {"block_chacal",
          "ChaCAL in blocks of b, across them their mean keys and W",
          "b + n/b^2",
          "2(b + n/b)",
          "Fagnou et al. 2024 (arXiv 2410.05565), form ours",
          [](config::Table& table, const BlockDefaults& defaults) {
            BlockChacalConfig config{{read_heads(table, defaults)}};
            config.gamma = read_gamma(table, config.gamma);
            // The least b with b^3 >= length, so that training costs O(length^(4/3)).
            int64_t block = 1;
            while (block * block * block < defaults.length) ++block;
            config.block = table.get_between("block", block, 1, kMostSize);
            return plan<BlockChacal>(config);
          }};
}

}  // namespace hopmix::nn

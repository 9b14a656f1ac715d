#include "hopmix/nn/heads.h"

#include <cmath>

#include "hopmix/pattern/pattern.h"

namespace hopmix::nn {

HeadsConfig read_heads_without_rope(config::Table& table, const BlockDefaults& defaults) {
  HeadsConfig config;
  config.width = defaults.width;
  config.heads = table.get_at_least("heads", defaults.heads, 1);
  config.token_shift = table.get("token_shift", defaults.token_shift);
  check_heads(config);
  return config;
}

HeadsConfig read_heads(config::Table& table, const BlockDefaults& defaults) {
  HeadsConfig config = read_heads_without_rope(table, defaults);
  config.rope = table.get("rope", defaults.rope);
  check_heads(config);
  return config;
}

std::string read_pattern(config::Table& table, const std::string& fallback,
                         const BlockDefaults& defaults) {
  const std::string spec = table.get("pattern", fallback);
  try {
    Pattern(spec, defaults.length);
  } catch (const Error& error) {
    throw Error(table.name("pattern") + ": " + error.what());
  }
  return spec;
}

torch::nn::Linear linear(int64_t inputs, int64_t outputs, bool bias) {
  torch::nn::Linear map(torch::nn::LinearOptions(inputs, outputs).bias(bias));
  if (bias) torch::nn::init::zeros_(map->bias);
  return map;
}

void check_heads(const HeadsConfig& config) {
  if (config.width < 1) {
    throw Error("width = " + std::to_string(config.width) + ": must be at least 1");
  }
  if (config.heads < 1 || config.width % config.heads != 0) {
    throw Error("heads = " + std::to_string(config.heads) + ": must divide the width, " +
                std::to_string(config.width));
  }
  if (config.rope && config.head_width() % 2 != 0) {
    throw Error("rope = true: needs an even head width, not " +
                std::to_string(config.head_width()) + " (width / heads)");
  }
}

Tensor shift_tokens(const HeadsConfig& config, const Tensor& x) {
  if (!config.token_shift) return x;
  const Tensor previous = torch::constant_pad_nd(x, {0, 0, 1, 0}).narrow(1, 0, x.size(1));
  return torch::cat({x, previous}, -1);
}

Tensor shift_tokens_step(const HeadsConfig& config, const Tensor& x, State& state) {
  if (!config.token_shift) return x.unsqueeze(1);
  const Tensor input = torch::cat({x, state.tensors.at("last")}, -1).unsqueeze(1);
  state.tensors["last"] = x.clone();  // a view would keep its whole batch of tokens alive
  return input;
}

void init_token_shift(const HeadsConfig& config, int64_t batch, torch::TensorOptions options,
                      State& state) {
  if (config.token_shift) state.tensors["last"] = torch::zeros({batch, config.width}, options);
}

Tensor split_heads(const Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, x.size(-1) / heads});
}

Tensor apply_rope(const Tensor& x, int64_t start) {
  const int64_t time = x.size(1), width = x.size(3);
  const auto options = torch::TensorOptions().dtype(torch::kFloat64).device(x.device());
  const Tensor frequency =
      torch::pow(10000.0, -torch::arange(0, width, 2, options) / static_cast<double>(width));
  const Tensor angle = torch::arange(start, start + time, options).unsqueeze(1) * frequency;
  const Tensor cos = angle.cos().to(x.scalar_type()).unsqueeze(1);  // [T,1,D/2]
  const Tensor sin = angle.sin().to(x.scalar_type()).unsqueeze(1);
  const Tensor pairs = x.unflatten(-1, {width / 2, 2});
  const Tensor even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
  return torch::stack({even * cos - odd * sin, even * sin + odd * cos}, -1).flatten(-2);
}

std::vector<Tensor> project_qkv(torch::nn::Linear& qkv, const HeadsConfig& config,
                                const Tensor& input, int64_t start) {
  std::vector<Tensor> parts = split_heads(qkv(input), 3 * config.heads).chunk(3, 2);
  if (config.rope) {
    for (const int i : {0, 1}) parts[i] = apply_rope(parts[i], start);
  }
  return parts;
}

Tensor token_scores(const Tensor& q, const Tensor& k) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  return torch::einsum("bhd,bchd->bhc", {q * scale, k});
}

Tensor token_softmax(const Tensor& q, const Tensor& k) {
  return torch::softmax(token_scores(q, k), -1);
}

Tensor token_sum(const Tensor& p, const Tensor& v) {
  return torch::einsum("bhc,bchd->bhd", {p, v});
}

}  // namespace hopmix::nn

#include "hopmix/nn/heads.h"

namespace hopmix::nn {

HeadsConfig read_heads_without_rope(config::Table& table, const BlockDefaults& defaults) {
  HeadsConfig config;
  config.width = defaults.width;
  config.heads = table.get_between("heads", defaults.heads, 1, kMostSize);
  config.token_shift = table.get("token_shift", defaults.token_shift);
  config.end = defaults.end;
  check_heads(config);
  return config;
}

HeadsConfig read_heads(config::Table& table, const BlockDefaults& defaults) {
  HeadsConfig config = read_heads_without_rope(table, defaults);
  config.rope = table.get("rope", defaults.rope);
  check_heads(config);
  return config;
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

Tensor split_heads(const Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, x.size(-1) / heads});
}

std::vector<Tensor> project_qkv(Linear& qkv, const HeadsConfig& config, const Tensor& input,
                                const Starts& start) {
  const std::vector<int64_t> widths(3, config.width);
  std::vector<Tensor> parts = linear_parts(input, {qkv->weight}, widths);
  for (Tensor& part : parts) part = split_heads(part, config.heads);
  if (config.rope) rotate(parts, {0, 1}, start);
  return parts;
}

}  // namespace hopmix::nn

#include "hopmix/nn/constructed_block.h"

#include <cmath>
#include <numbers>

#include "hopmix/base/error.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {
namespace {

// Weight of a digit: above the largest difference of two cosines, and a power of two, so exact.
constexpr double kBlockScore = 4;
// Margin of the answer over the other reached tokens; ln(2 m n / pi) suffices, and this is enough
// up to n = 10^27.
constexpr double kBeta = 64;

Tensor parameter(Mixer& mixer, const std::string& name) { return mixer.named_parameters()[name]; }

MixerPlan read(toml::table keys, const BlockDefaults& defaults) {
  config::Table table(keys);
  const MixerPlan plan = read_mixer(table, defaults);
  table.finish();
  return plan;
}

int64_t root(int64_t n) {
  auto r = static_cast<int64_t>(std::sqrt(static_cast<double>(n)));
  while (r * r < n) ++r;
  return r;
}

}  // namespace

ConstructedBlock::ConstructedBlock(const ConstructedBlockConfig& config)
    : config_(config),
      digits_(config.two_digits ? 2 : 1),
      base_(config.two_digits ? root(config.n) : config.n),
      width_(config.functions + 1 + 3 * 2 * digits_) {
  const int64_t m = config.functions, circle = 2 * digits_;
  if (m < 1) throw Error("functions = " + std::to_string(m) + ": must be at least 1");
  if (config.n < 2) throw Error("n = " + std::to_string(config.n) + ": must be at least 2");
  // Scores are divided by the root of the head width, which is exact for a power of four.
  int64_t key = 4;
  while (key < m + circle) key *= 4;

  BlockDefaults defaults{.width = width_, .heads = 1, .token_shift = false};
  const MixerPlan full = read(
      toml::table{{"mixer", "attention"}, {"mem", "functions"}, {"head_width", key}}, defaults);
  toml::array ones;
  for (int64_t hop = 0; hop < m; ++hop) ones.push_back(1);
  const MixerPlan mura = read(toml::table{{"mixer", "mura"},
                                          {"mem", "functions"},
                                          {"widths", ones},
                                          {"set", config.cumulative ? "cumulative" : "exact"}},
                              defaults);
  full_ = full.build();
  mura_ = mura.build();

  const torch::NoGradGuard no_grad;
  for (const auto& mixer : {full_, mura_}) {
    mixer->to(config.dtype);
    for (Tensor& weight : mixer->parameters()) weight.zero_();
  }
  const auto root_of_key = std::sqrt(static_cast<double>(key));
  const std::vector<Tensor> qkv = parameter(*full_, "qkv.weight").chunk(3);
  const int64_t index = m + 1, value = index + circle, output = value + circle;
  for (int64_t r = 0; r < m; ++r) {
    qkv[0][r][r + 1] = kBlockScore * static_cast<double>(digits_) *
                       root_of_key;  // a token of block r + 1 looks into block r
    qkv[1][r][r] = 1;
  }
  for (int64_t c = 0; c < circle; ++c) {
    qkv[0][m + c][value + c] = root_of_key;
    qkv[1][m + c][index + c] = 1;
    qkv[2][c][value + c] = 1;
    parameter(*mura_, "out.weight")[output + c][c] = 1;
  }
  for (int64_t r = 0; r <= m; ++r) parameter(*mura_, "q.weight")[0][r] = kBeta * root_of_key;
}

Tensor ConstructedBlock::circles(const Tensor& values) const {
  const auto digit_circle = [&](const Tensor& digit) {
    const Tensor angle =
        digit.to(torch::kFloat64) * (2 * std::numbers::pi / static_cast<double>(base_));
    return torch::stack({angle.cos(), angle.sin()}, -1);
  };
  const Tensor low = digit_circle(values.remainder(base_));
  if (digits_ == 1) return low.to(config_.dtype);
  return torch::cat({digit_circle(values.floor_divide(base_)), low}, -1).to(config_.dtype);
}

Tensor ConstructedBlock::answers(const Tensor& functions, const Tensor& x) {
  const torch::NoGradGuard no_grad;
  const int64_t batch = functions.size(0), m = config_.functions, n = config_.n;
  const int64_t circle = 2 * digits_, length = m * n + x.size(1);
  const Tensor tokens = torch::zeros({batch, length, width_}, config_.dtype);
  const Tensor index = circles(torch::arange(n));
  for (int64_t r = 0; r < m; ++r) {
    const Tensor block = tokens.narrow(1, r * n, n);
    block.select(2, r).fill_(1);
    block.narrow(2, m + 1, circle).copy_(index.unsqueeze(0));
    block.narrow(2, m + 1 + circle, circle).copy_(circles(functions.select(1, r)));
  }
  const Tensor questions = tokens.narrow(1, m * n, x.size(1));
  questions.select(2, m).fill_(1);
  questions.narrow(2, m + 1 + circle, circle).copy_(circles(x));

  Context context;
  Tensor y = tokens + full_->forward(tokens, context);
  y = y + mura_->forward(y, context);
  const Tensor written = y.narrow(1, m * n, x.size(1)).narrow(2, width_ - circle, circle);
  return torch::matmul(written, index.t()).argmax(-1);
}

Tensor compositions(const Tensor& functions, const Tensor& x) {
  Tensor value = x;
  for (int64_t r = functions.size(1) - 1; r >= 0; --r)
    value = functions.select(1, r).gather(1, value);
  return value;
}

}  // namespace hopmix::nn

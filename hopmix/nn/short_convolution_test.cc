#include "hopmix/nn/short_convolution.h"

#include <gtest/gtest.h>

#include "hopmix/base/error.h"
#include "hopmix/nn/norm.h"

namespace hopmix::nn {
namespace {

// PyTorch's depthwise convolution, padded and trimmed.
Tensor convolution(const ShortConvolution& layer, const Tensor& x, bool silu) {
  const int64_t width = layer.weight.size(0), taps = layer.weight.size(1);
  const Tensor y = torch::conv1d(x.transpose(1, 2), layer.weight.unsqueeze(1), layer.bias,
                                 /*stride=*/1, /*padding=*/taps - 1, /*dilation=*/1,
                                 /*groups=*/width)
                       .slice(2, 0, x.size(1))
                       .transpose(1, 2);
  return silu ? torch::silu(y) : y;
}

TEST(ShortConvolution, IsPyTorchsAndStepEqualsForward) {
  const torch::NoGradGuard no_grad;
  for (const int64_t taps : {1, 2, 4, 7}) {
    for (const bool plain : {false, true}) {
      torch::manual_seed(taps);
      ShortConvolution layer(10, {.taps = taps, .bias = !plain, .silu = !plain});
      layer.to(torch::kFloat64);
      if (!plain) layer.bias.uniform_(-1, 1);
      const Tensor x = torch::randn({2, 9, 10}, torch::kFloat64);
      const Tensor y = layer.forward(x);
      EXPECT_LT((y - convolution(layer, x, !plain)).abs().max().item<double>(), 1e-14);
      const std::vector<int64_t> kept = layer.state().at("conv").sizes;
      ASSERT_EQ(kept, (std::vector<int64_t>{taps - 1, 10}));
      State state;
      state.tensors["conv"] = torch::zeros({2, kept[0], kept[1]}, torch::kFloat64);
      for (int64_t t = 0; t < 9; ++t) {
        EXPECT_EQ(state.bytes(), 2 * 8 * (taps - 1) * 10);
        EXPECT_TRUE(torch::equal(layer.step(x.select(1, t), state), y.select(1, t)));
      }
    }
  }
}

TEST(ShortConvolution, WeightsNeedNotBeOfTheInputsType) {
  ShortConvolution layer(10);
  const Tensor x = torch::randn({2, 9, 10}).to(torch::kBFloat16);
  EXPECT_EQ(layer.forward(x).scalar_type(), torch::kBFloat16);
}

TEST(ShortConvolution, TapsOutOfRangeAreAnError) {
  for (const int64_t taps : {0, 33}) {
    EXPECT_THROW(ShortConvolution(10, {.taps = taps}), Error);
  }
}

TEST(GatedHeadNorm, IsItsDefinition) {
  torch::manual_seed(1);
  GatedHeadNorm norm(5);
  norm.to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  norm.weight.uniform_(0.5, 2);
  const Tensor x = torch::randn({2, 9, 3, 5}, torch::kFloat64);
  const Tensor gate = torch::randn({2, 9, 15}, torch::kFloat64);
  const Tensor rms = (x.square().mean(-1, true) + 1e-6).sqrt();
  const Tensor expected = (x / rms * norm.weight).flatten(2) * gate * torch::sigmoid(gate);
  EXPECT_LT((norm.forward(x, gate) - expected).abs().max().item<double>(), 1e-14);
}

}  // namespace
}  // namespace hopmix::nn

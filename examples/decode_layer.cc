// Decodes a layer token by token. The outputs equal those of a whole pass, and the state stays
// small.
#include <cstdio>

#include "hopmix/nn/mixers/glr.h"

int main() {
  const torch::NoGradGuard no_grad;
  hopmix::nn::Glr mixer({{.width = 64, .heads = 4}, hopmix::Pattern("cached(k^2+1)", 1000)});
  hopmix::nn::Context context;
  const torch::Tensor x = torch::randn({1, 1000, 64});
  const torch::Tensor whole = mixer.forward(x, context);  // [batch, time, width]

  hopmix::nn::State state = mixer.initial_state(/*batch=*/1);
  double difference = 0;
  for (int64_t t = 0; t < x.size(1); ++t) {
    const torch::Tensor y = mixer.step(x.select(1, t), state, context);
    difference = std::max(difference, (y - whole.select(1, t)).abs().max().item<double>());
  }
  std::printf("1000 tokens: largest difference %.1e, state %lld bytes\n", difference,
              static_cast<long long>(state.bytes()));
  return difference < 1e-5 ? 0 : 1;
}

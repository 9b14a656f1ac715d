// Decodes a GLR layer without torch, using only linear maps of the input and hopmix's kernels. The
// outputs equal those of a whole pass, and the state stays small.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "hopmix/kernels/decode/glr_decoder.h"
#include "hopmix/kernels/rows/glr_attention.h"

namespace {

using namespace hopmix;
using Vector = std::vector<float>;

constexpr int64_t kTokens = 4000, kHeads = 4, kWidth = 64, kHead = kWidth / kHeads;
constexpr const char* kPattern = "cached(k^2+1)";

Vector random(int64_t count, float size) {
  static std::mt19937 generator(0);
  std::normal_distribution<float> normal(0, size);
  Vector out(count);
  for (float& x : out) x = normal(generator);
  return out;
}

// y [outputs] = weight [outputs, inputs] x.
void map(const Vector& weight, const float* x, int64_t inputs, float* y, int64_t outputs) {
  for (int64_t o = 0; o < outputs; ++o) {
    y[o] = 0;
    for (int64_t i = 0; i < inputs; ++i) y[o] += weight[o * inputs + i] * x[i];
  }
}

}  // namespace

int main() {
  // The weights of an untrained layer: q, k, v; gates; the output.
  const float size = 1 / std::sqrt(static_cast<float>(kWidth));
  const Vector wq = random(kWidth * kWidth, size), wk = random(kWidth * kWidth, size),
               wv = random(kWidth * kWidth, size), wg = random(3 * kHeads * kWidth, size),
               wo = random(kWidth * kWidth, size), x = random(kTokens * kWidth, 1);
  Vector q(kTokens * kWidth), k(q), v(q), y(q), out(q);  // [token, head, width]
  Vector gates[3], g(3 * kHeads);
  for (Vector& gate : gates) gate.resize(kTokens * kHeads);

  kernels::GlrDecoder<float> decoder(
      {.pattern = kPattern, .heads = kHeads, .key_width = kHead, .value_width = kHead});
  const auto start = std::chrono::steady_clock::now();
  for (int64_t t = 0; t < kTokens; ++t) {
    const int64_t at = t * kWidth, head = t * kHeads;
    map(wq, &x[at], kWidth, &q[at], kWidth);
    map(wk, &x[at], kWidth, &k[at], kWidth);
    map(wv, &x[at], kWidth, &v[at], kWidth);
    map(wg, &x[at], kWidth, g.data(), 3 * kHeads);
    for (int64_t i = 0; i < 3 * kHeads; ++i) {
      gates[i / kHeads][head + i % kHeads] = 1 / (1 + std::exp(-g[i]));
    }
    decoder.step({&q[at], &k[at], &v[at], &gates[0][head], &gates[1][head], &gates[2][head]},
                 &y[at]);
    map(wo, &y[at], kWidth, &out[at], kWidth);
  }
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;

  Vector whole(y.size());
  const auto all = kernels::Sequences::batched(1, kTokens);
  const kernels::Rows rows{Pattern(kPattern, kTokens)};
  kernels::glr_attention<float>(
      {q.data(), k.data(), v.data(), gates[0].data(), gates[1].data(), gates[2].data(), kHeads,
       kHeads, kHead, kHead, 1 / std::sqrt(static_cast<double>(kHead)), all, rows},
      whole.data());
  float difference = 0;
  for (size_t i = 0; i < y.size(); ++i)
    difference = std::max(difference, std::abs(y[i] - whole[i]));
  std::printf("%lld tokens: largest difference %.1e, %lld bytes held, %.1f us per token\n",
              static_cast<long long>(kTokens), difference, static_cast<long long>(decoder.bytes()),
              taken.count() / kTokens);
  return difference < 1e-4 ? 0 : 1;
}

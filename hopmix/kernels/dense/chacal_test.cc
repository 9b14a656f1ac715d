#include "hopmix/kernels/dense/chacal.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/dense/dense_checks.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

constexpr double kGamma = 0.7;

template <typename T>
struct Chacal {
  using Value = T;
  using A = Accumulator<T>;
  using P = DenseProblem<Chacal>;
  static constexpr int kNumbers = 0;
  static constexpr bool kSelf = true;

  static ChacalInputs<T> inputs(const P& p) {
    return {p.q.data(),        p.k.data(),          p.v.data(), p.sizes.heads, p.sizes.kv_heads,
            p.sizes.key_width, p.sizes.value_width, kGamma,     p.scale,       p.sequences};
  }
  static void forward(const P& p, T* y, A* mix, A* lse) { chacal<T>(inputs(p), y, {mix, lse}); }
  static void backward(const P& p, const A* mix, const A* lse, const DensePointers<T>& out) {
    chacal_backward<T>(inputs(p), p.grad_y.data(), {mix, lse}, {out.q, out.k, out.v});
  }
  static reference::DenseResults reference(const Matrix& q, const Matrix& k, const Matrix& v,
                                           const std::vector<Matrix>&, const Matrix& g,
                                           double scale, int64_t) {
    return reference::chacal(q, k, v, g, kGamma, scale);
  }
};
using Types = ::testing::Types<Chacal<float>, Chacal<double>, Chacal<Bfloat16>>;
INSTANTIATE_TYPED_TEST_SUITE_P(OfChacal, DenseKernel, Types);

}  // namespace
}  // namespace hopmix::kernels

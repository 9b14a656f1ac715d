#include "hopmix/kernels/dense/dense_recurrence.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/dense/dense_checks.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

template <typename T>
struct Recurrence {
  using Value = T;
  using A = Accumulator<T>;
  using P = DenseProblem<Recurrence>;
  static constexpr int kNumbers = 3;
  static constexpr bool kSelf = false;

  static DenseRecurrenceInputs<T> inputs(const P& p) {
    return {p.q.data(),          p.k.data(),          p.v.data(),    p.numbers[0].data(),
            p.numbers[1].data(), p.numbers[2].data(), p.sizes.heads, p.sizes.kv_heads,
            p.sizes.key_width,   p.sizes.value_width, p.scale,       p.sequences};
  }
  static void forward(const P& p, T* y, A* mix, A* lse) {
    dense_recurrence<T>(inputs(p), y, {mix, lse});
  }
  static void backward(const P& p, const A* mix, const A* lse, const DensePointers<T>& out) {
    dense_recurrence_backward<T>(
        inputs(p), p.grad_y.data(), {mix, lse},
        {out.q, out.k, out.v, out.numbers[0], out.numbers[1], out.numbers[2]});
  }
  static reference::DenseResults reference(const Matrix& q, const Matrix& k, const Matrix& v,
                                           const std::vector<Matrix>& n, const Matrix& g,
                                           double scale, int64_t) {
    const Matrix mask = reference::triangle(q.rows, false);
    const auto c = reference::shared_coefficients(q, k, n[0], n[1], n[2], scale, mask);
    const auto d = reference::glr_attention_gradients(q, k, v, n[0], n[1], n[2], scale, mask, g);
    return {reference::glr(c.a, c.b, v), d.q, d.k, d.v, {d.gate, d.d, d.d_self}};
  }
};
using Types = ::testing::Types<Recurrence<float>, Recurrence<double>, Recurrence<Bfloat16>>;
INSTANTIATE_TYPED_TEST_SUITE_P(OfRecurrence, DenseKernel, Types);

}  // namespace
}  // namespace hopmix::kernels

#include "hopmix/kernels/dense/block_chacal.h"

#include <gtest/gtest.h>

#include "hopmix/kernels/dense/dense_checks.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

constexpr double kGamma = 0.7;

template <typename T>
struct BlockChacal {
  using Value = T;
  using A = Accumulator<T>;
  using P = DenseProblem<BlockChacal>;
  static constexpr int kNumbers = 0;
  static constexpr bool kSelf = true;

  static BlockChacalInputs<T> inputs(const P& p) {
    return {p.q.data(),       p.k.data(),        p.v.data(),          p.sizes.heads,
            p.sizes.kv_heads, p.sizes.key_width, p.sizes.value_width, kGamma,
            p.block,          p.scale,           p.sequences};
  }
  static void forward(const P& p, T* y, A* mix, A* lse) {
    block_chacal<T>(inputs(p), y, {mix, lse});
  }
  static void backward(const P& p, const A* mix, const A* lse, const DensePointers<T>& out) {
    block_chacal_backward<T>(inputs(p), p.grad_y.data(), {mix, lse}, {out.q, out.k, out.v});
  }
  static reference::DenseResults reference(const Matrix& q, const Matrix& k, const Matrix& v,
                                           const std::vector<Matrix>&, const Matrix& g,
                                           double scale, int64_t block) {
    int64_t b = block > 0 ? std::min(block, q.rows) : 1;
    while (block == 0 && b * b * b < q.rows) ++b;
    return reference::block_chacal(q, k, v, g, kGamma, b, scale);
  }
};
using Types = ::testing::Types<BlockChacal<float>, BlockChacal<double>, BlockChacal<Bfloat16>>;
INSTANTIATE_TYPED_TEST_SUITE_P(OfBlockChacal, DenseKernel, Types);

template <typename T>
class BlockChacalOf : public ::testing::Test {};
TYPED_TEST_SUITE(BlockChacalOf, StorageTypes);

TYPED_TEST(BlockChacalOf, BlocksOfAnySize) {
  const auto check = [](int64_t time, int64_t block) {
    SCOPED_TRACE(block);
    expect_dense_reference<BlockChacal<TypeParam>>({"", time, 5, 16, 1, 2, 1}, block);
  };
  check(1, 1);
  check(7, 1);
  check(30, 4);
  check(32, 4);
  check(65, 16);
  check(65, 64);
  check(65, 65);
  check(300, 130);
  check(20, 1000);
}

}  // namespace
}  // namespace hopmix::kernels

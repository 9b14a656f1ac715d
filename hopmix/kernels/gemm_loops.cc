#include "hopmix/kernels/gemm_loops.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/gemm_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/base/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

// A block of C is some rows by kVectors vectors: its sums, the vectors of a row of B and one number
// of A fill the registers.
template <int64_t kVectors>
constexpr int64_t rows_of_block() {
  if (HWY_TARGET == HWY_AVX3) return 12;
  return kVectors == 2 ? 6 : 10;
}

template <typename A>
constexpr int64_t lanes_of() {
  return static_cast<int64_t>(hn::MaxLanes(Tag<A>()));
}

template <int64_t kRows, int64_t kVectors, typename A>
HWY_INLINE void block(int64_t k, const A* HWY_RESTRICT a, int64_t lda, const A* HWY_RESTRICT b,
                      int64_t ldb, A* HWY_RESTRICT c, int64_t ldc, bool add) {
  const Tag<A> d;
  constexpr int64_t lanes = lanes_of<A>();
  Vec<A> sums[kRows][kVectors];
#pragma GCC unroll 12
  for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVectors; ++v) {
      sums[r][v] = add ? hn::LoadU(d, c + r * ldc + v * lanes) : hn::Zero(d);
    }
  }
#pragma GCC unroll 4
  for (int64_t l = 0; l < k; ++l) {
    Vec<A> right[kVectors];
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b + l * ldb + v * lanes);
#pragma GCC unroll 12
    for (int64_t r = 0; r < kRows; ++r) {
      const auto left = hn::Set(d, a[r * lda + l]);
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(left, right[v], sums[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], d, c + r * ldc + v * lanes);
  }
}

// The last rows of a strip, fewer than a whole block has.
template <int64_t kRows, int64_t kVectors, typename A>
HWY_INLINE void last_rows(int64_t m, int64_t k, const A* a, int64_t lda, const A* b, int64_t ldb,
                          A* c, int64_t ldc, bool add) {
  if (m == kRows) {
    block<kRows, kVectors>(k, a, lda, b, ldb, c, ldc, add);
  } else if constexpr (kRows > 1) {
    last_rows<kRows - 1, kVectors>(m, k, a, lda, b, ldb, c, ldc, add);
  }
}

// Rows of B that the L1 cache holds beside rows of A.
constexpr int64_t kDepth = 256;

// kVectors vectors of columns.
template <int64_t kVectors, typename A>
HWY_NOINLINE void strip(int64_t m, int64_t k, const A* a, int64_t lda, const A* b, int64_t ldb,
                        A* c, int64_t ldc, bool add) {
  constexpr int64_t kRows = rows_of_block<kVectors>();
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows) {
    block<kRows, kVectors>(k, a + i * lda, lda, b, ldb, c + i * ldc, ldc, add);
  }
  if (i < m) {
    last_rows<kRows - 1, kVectors>(m - i, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc, add);
  }
}

// Fewer columns than a vector: by way of memory that has as many.
template <typename A>
HWY_NOINLINE void narrow_strip(int64_t m, int64_t n, int64_t k, const A* a, int64_t lda, const A* b,
                               int64_t ldb, A* c, int64_t ldc, bool add) {
  constexpr int64_t lanes = lanes_of<A>(), kRows = rows_of_block<1>();
  HWY_ALIGN A right[kDepth * lanes];
  HWY_ALIGN A sums[kRows * lanes] = {};
  for (int64_t l = 0; l < k; l += kDepth) {
    const int64_t depth = std::min(kDepth, k - l);
    for (int64_t x = 0; x < depth; ++x) {
      std::copy_n(b + (l + x) * ldb, n, right + x * lanes);
      std::fill_n(right + x * lanes + n, lanes - n, A{0});
    }
    for (int64_t i = 0; i < m; i += kRows) {
      const int64_t rows = std::min(kRows, m - i);
      const bool continues = add || l > 0;
      for (int64_t r = 0; continues && r < rows; ++r) {
        std::copy_n(c + (i + r) * ldc, n, sums + r * lanes);
      }
      strip<1>(rows, depth, a + i * lda + l, lda, right, lanes, sums, lanes, continues);
      for (int64_t r = 0; r < rows; ++r) std::copy_n(sums + r * lanes, n, c + (i + r) * ldc);
    }
  }
}

template <typename A>
void product(int64_t m, int64_t n, int64_t k, const A* a, int64_t lda, const A* b, int64_t ldb,
             A* c, int64_t ldc, bool add) {
  constexpr int64_t lanes = lanes_of<A>();
  if (k > kDepth * 3 / 2) {
    product(m, n, kDepth, a, lda, b, ldb, c, ldc, add);
    return product(m, n, k - kDepth, a + kDepth, lda, b + kDepth * ldb, ldb, c, ldc, true);
  }
  int64_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) strip<2>(m, k, a, lda, b + j, ldb, c + j, ldc, add);
  if (j + lanes <= n) {
    strip<1>(m, k, a, lda, b + j, ldb, c + j, ldc, add);
    j += lanes;
  }
  if (j < n) narrow_strip(m, n - j, k, a, lda, b + j, ldb, c + j, ldc, add);
}

Gemm<float> product_float() { return product<float>; }
Gemm<double> product_double() { return product<double>; }
int64_t columns_of_block() { return std::max<int64_t>(16, 2 * lanes_of<float>()); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(product_float);
HWY_EXPORT(product_double);
HWY_EXPORT(columns_of_block);

int64_t gemm_loop_columns() { return HWY_DYNAMIC_DISPATCH(columns_of_block)(); }

template <>
Gemm<float> gemm_loops() {
  return HWY_DYNAMIC_DISPATCH(product_float)();
}
template <>
Gemm<double> gemm_loops() {
  return HWY_DYNAMIC_DISPATCH(product_double)();
}

}  // namespace hopmix::kernels
#endif

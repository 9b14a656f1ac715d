// Matrix products on raw row-major memory, C (+)= A B, inside an operator's own threads: oneDNN's
// batch-reduce kernels, which reach AMX in bfloat16, or plain loops where those do not run. Neither
// starts threads nor allocates, and the bits of a row do not depend on the threads around it.
#pragma once

#include <ATen/Context.h>
#include <ATen/native/CPUBlas.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::ops {

/// Where element [k, n] of a right factor B lies. bfloat16 has rows 2k and 2k+1 interleaved, as the
/// instructions take them; others are row-major.
template <typename O>
constexpr int64_t right_index(int64_t k, int64_t n, int64_t ld) {
  if constexpr (std::is_same_v<O, kernels::Bfloat16>) return (k / 2 * ld + n) * 2 + k % 2;
  return k * ld + n;
}

/// Float and bfloat16 by oneDNN; A [m, k], B [k, n], C [m, n]. k is even.
struct OneDnnProducts {
  static void multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
                       int64_t ldb, float* c, int64_t ldc, bool add) {
    at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, /*is_vnni=*/false);
  }

  static void multiply(int64_t m, int64_t n, int64_t k, const kernels::Bfloat16* a, int64_t lda,
                       const kernels::Bfloat16* b, int64_t ldb, float* c, int64_t ldc, bool add) {
    const auto cast = [](const kernels::Bfloat16* x) {
      return reinterpret_cast<const at::BFloat16*>(x);
    };
    at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, cast(a), cast(b), c);
  }

  /// Call it when a thread has done its products.
  static void release() { at::native::cpublas::brgemm_release(); }

  /// Whether this CPU runs products of O, and the user has not switched oneDNN off.
  template <typename O>
  static bool available() {
    static const bool runs = [] {
      O a[4]{}, b[4]{};
      float c[4];
      try {
        multiply(2, 2, 2, a, 2, b, 2, c, 2, false);
        release();
      } catch (const c10::Error&) {
        return false;
      }
      return true;
    }();
    return runs && at::globalContext().userEnabledMkldnn();
  }
};

template <typename A>
struct LoopProducts {
  static void multiply(int64_t m, int64_t n, int64_t k, const A* a, int64_t lda, const A* b,
                       int64_t ldb, A* c, int64_t ldc, bool add) {
    for (int64_t i = 0; i < m; ++i) {
      A* out = c + i * ldc;
      if (!add) std::fill(out, out + n, A{0});
      for (int64_t l = 0; l < k; ++l) {
        const A weight = a[i * lda + l];
        const A* row = b + l * ldb;
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) out[j] += weight * row[j];
      }
    }
  }
  static void release() {}
};

/// Products of a matrix A [n, n] over queries and keys of which only what a query sees of the keys
/// up to its own place is made, or read: queries are rows, or if `transposed` columns. They go by
/// strips of rows, and what lies outside of them stays untouched. n is a multiple of 16.
template <typename Products, typename O, typename A>
struct VisibleProducts {
  /// A = x y with x [n, width], y [width, n].
  static void make(int64_t n, int64_t width, const O* x, const O* y, bool transposed, A* out) {
    strips(n, transposed, [&](int64_t i, int64_t rows, int64_t begin, int64_t count) {
      Products::multiply(rows, count, width, x + i * width, width, y + right_index<O>(0, begin, n),
                         n, out + i * n + begin, n, /*add=*/false);
    });
  }

  /// out (+)= A x with x [n, width].
  static void apply(int64_t n, int64_t width, const O* a, const O* x, bool transposed, A* out,
                    bool add) {
    strips(n, transposed, [&](int64_t i, int64_t rows, int64_t begin, int64_t count) {
      Products::multiply(rows, width, count, a + i * n + begin, n,
                         x + right_index<O>(begin, 0, width), width, out + i * width, width, add);
    });
  }

 private:
  template <typename F>
  static void strips(int64_t n, bool transposed, const F& f) {
    // bfloat16 products are so quick that starting one costs more than what is saved.
    constexpr int64_t kStrip = std::is_same_v<O, kernels::Bfloat16> ? 64 : 16;
    for (int64_t i = 0; i < n; i += kStrip) {
      const int64_t rows = std::min(kStrip, n - i);
      const int64_t begin = transposed ? i : 0, end = transposed ? n : i + rows;
      f(i, rows, begin, end - begin);
    }
  }
};

}  // namespace hopmix::ops

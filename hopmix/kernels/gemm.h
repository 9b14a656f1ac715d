// Products of matrices on raw row-major memory, C (+)= A B, for a kernel's own threads: none here
// starts threads or allocates, and a row's bits depend neither on the threads nor on the rows
// around it.
//
// An engine does them: the Highway loops of gemm_loops.h, or what another layer has brought
// (ops/engines.h: oneDNN, MKL). It is chosen before the first product and stays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// Where element [k, n] of a right factor B lies. bfloat16 has rows 2k and 2k+1 interleaved, as the
/// instructions take them; others are row-major.
template <typename O>
constexpr int64_t right_index(int64_t k, int64_t n, int64_t ld) {
  if constexpr (std::is_same_v<O, Bfloat16>) return (k / 2 * ld + n) * 2 + k % 2;
  return k * ld + n;
}

/// C [m, n] = A [m, k] B [k, n], or with `add` C += A B; ld* are the leading dimensions. Sums of
/// bfloat16 are float. m, n, k >= 1; k is even for bfloat16.
template <typename O>
using Gemm = void (*)(int64_t m, int64_t n, int64_t k, const O* a, int64_t lda, const O* b,
                      int64_t ldb, Accumulator<O>* c, int64_t ldc, bool add);

struct GemmEngine {
  const char* name = nullptr;
  Gemm<float> f32 = nullptr;
  Gemm<double> f64 = nullptr;
  Gemm<Bfloat16> bf16 = nullptr;  // null: this processor has no such products
  void (*release)() = nullptr;    // when a thread has done its products; may be null
  int64_t panel = 64;             // columns of B that do best in one piece; a multiple of 16
};

/// The loops of hopmix itself, for the best instruction set of this processor.
GemmEngine highway_gemm();

/// The engine in use; highway_gemm() unless use_gemm_engine() has named another.
const GemmEngine& gemm_engine();

/// Not while products run. Pointers that the engine leaves null are the loops' own.
void use_gemm_engine(const GemmEngine& engine);

/// Whether products take bfloat16 operands as they are.
inline bool has_bfloat16_gemm() { return gemm_engine().bf16 != nullptr; }

/// The product by the engine in use. Sizes of 0 are allowed.
template <typename O>
void multiply(int64_t m, int64_t n, int64_t k, const O* a, int64_t lda, const O* b, int64_t ldb,
              Accumulator<O>* c, int64_t ldc, bool add) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {
    for (int64_t i = 0; i < m && !add; ++i) std::fill_n(c + i * ldc, n, Accumulator<O>{0});
    return;
  }
  if constexpr (std::is_same_v<O, float>) {
    gemm_engine().f32(m, n, k, a, lda, b, ldb, c, ldc, add);
  } else if constexpr (std::is_same_v<O, double>) {
    gemm_engine().f64(m, n, k, a, lda, b, ldb, c, ldc, add);
  } else {
    gemm_engine().bf16(m, n, k, a, lda, b, ldb, c, ldc, add);
  }
}

/// Call it when a thread has done its products.
inline void release_gemm() {
  if (gemm_engine().release != nullptr) gemm_engine().release();
}

/// Products of a matrix A [n, n] over queries and keys of which only what a query sees of the keys
/// up to its own place is made, or read: queries are rows, or if `transposed` columns. They go by
/// strips of rows, and what lies outside of them stays untouched. n is a multiple of 16.
template <typename O>
struct VisibleProducts {
  using A = Accumulator<O>;

  /// A = x y with x [n, width], y [width, n].
  static void make(int64_t n, int64_t width, const O* x, const O* y, bool transposed, A* out) {
    strips(n, transposed, [&](int64_t i, int64_t rows, int64_t begin, int64_t count) {
      multiply<O>(rows, count, width, x + i * width, width, y + right_index<O>(0, begin, n), n,
                  out + i * n + begin, n, /*add=*/false);
    });
  }

  /// out (+)= A x with x [n, width].
  static void apply(int64_t n, int64_t width, const O* a, const O* x, bool transposed, A* out,
                    bool add) {
    strips(n, transposed, [&](int64_t i, int64_t rows, int64_t begin, int64_t count) {
      multiply<O>(rows, width, count, a + i * n + begin, n, x + right_index<O>(begin, 0, width),
                  width, out + i * width, width, add);
    });
  }

 private:
  template <typename F>
  static void strips(int64_t n, bool transposed, const F& f) {
    // bfloat16 products are so quick that starting one costs more than what is saved.
    constexpr int64_t kStrip = std::is_same_v<O, Bfloat16> ? 64 : 16;
    for (int64_t i = 0; i < n; i += kStrip) {
      const int64_t rows = std::min(kStrip, n - i);
      const int64_t begin = transposed ? i : 0, end = transposed ? n : i + rows;
      f(i, rows, begin, end - begin);
    }
  }
};

}  // namespace hopmix::kernels

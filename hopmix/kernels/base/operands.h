// Operands for the products of gemm.h: tiles that are zero-padded, converted, interleaved or
// transposed. O is the type of an operand, A that of sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/chunked/chunk_loops.h"
#include "hopmix/kernels/dense/softmax_tile.h"
#include "hopmix/kernels/gemm.h"

namespace hopmix::kernels {

/// A row-major matrix inside a larger one; reads beyond it are 0 when packed.
template <typename S>
struct MatrixView {
  const S* data;
  int64_t rows, cols, stride;
};

/// Calls f.template operator()<O>() with the type that products use for values stored as T: T, or
/// float for bfloat16 if this processor has no bfloat16 products.
template <typename T, typename F>
void with_operands(const F& f) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    has_bfloat16_gemm() ? f.template operator()<Bfloat16>() : f.template operator()<float>();
  } else {
    f.template operator()<T>();
  }
}

template <typename O, typename S>
O convert(S x) {
  if constexpr (std::is_same_v<O, S>) {
    return x;
  } else if constexpr (std::is_same_v<S, Bfloat16>) {
    return static_cast<O>(static_cast<float>(x));
  } else {
    return static_cast<O>(x);
  }
}

/// Calls f(i, row) for rows [first, first + n) of a matrix, i from 0; row is null past the last
/// one.
template <typename S, typename F>
void for_rows(const MatrixView<S>& x, int64_t first, int64_t n, const F& f) {
  for (int64_t i = 0; i < n; ++i) {
    f(i, first + i < x.rows ? x.data + (first + i) * x.stride : nullptr);
  }
}

/// Rows [first, first + n) as a left factor [n, width].
template <typename O, typename S>
void pack_left(const MatrixView<S>& x, int64_t first, int64_t n, int64_t width, O* out) {
  for_rows(x, first, n, [&](int64_t i, const S* row) {
    O* to = out + i * width;
    const int64_t inside = row == nullptr ? 0 : x.cols;
    if constexpr (std::is_same_v<O, S>) {
      std::copy_n(row, inside, to);
    } else {
#pragma omp simd
      for (int64_t c = 0; c < inside; ++c) to[c] = convert<O>(row[c]);
    }
    std::fill(to + inside, to + width, O{});
  });
}

/// The same rows of a right factor [tokens, width]; n is even.
template <typename O>
void pack_right(const O* left, int64_t n, int64_t width, O* out) {
  if constexpr (!std::is_same_v<O, Bfloat16>) {
    std::copy_n(left, n * width, out);
  } else {
    for (int64_t i = 0; i < n; i += 2) {
      const O *even = left + i * width, *odd = even + width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        out[i * width + 2 * c] = even[c];
        out[i * width + 2 * c + 1] = odd[c];
      }
    }
  }
}

/// A left factor [n, width], transposed, as columns of a right factor [width, ld].
template <typename O>
void pack_columns(const O* left, int64_t n, int64_t width, O* out, int64_t ld) {
  if constexpr (sizeof(O) == 8) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < width; ++c) out[c * ld + i] = left[i * width + c];
    }
  } else {
    constexpr int64_t kWord = 4 / sizeof(O);  // a right factor keeps pairs of bfloat16 together
    transpose_words(left, n, width / kWord, width / kWord, out, ld);
  }
}

/// Rows [n, stride] transposed, as rows [width, ld].
template <typename O>
void pack_left_transposed(const O* left, int64_t n, int64_t width, int64_t stride, O* out,
                          int64_t ld) {
  if constexpr (sizeof(O) == 4) {
    transpose_words(left, n, width, stride, out, ld);
  } else {
    for (int64_t c = 0; c < width; ++c) {
      for (int64_t i = 0; i < n; ++i) out[c * ld + i] = left[i * stride + c];
    }
  }
}

/// Memory for one operand, made from a tile [n, width] of A; n is a multiple of kTileLanes.
/// Operands that need no conversion are passed through.
template <typename O, typename A>
class Operand {
 public:
  static constexpr bool kSame = std::is_same_v<O, A>;

  /// For tiles of up to `size` entries; `transposes` if they will be transposed.
  explicit Operand(int64_t size, bool transposes = false)
      : out_(kSame && !transposes ? 0 : size), turned_(kSame || !transposes ? 0 : size) {}

  const O* left(const A* x, int64_t n, int64_t width) const {
    if constexpr (kSame) {
      return x;
    } else {
      rounding_loops().left(x, n * width, out_.data());
      return out_.data();
    }
  }

  const O* right(const A* x, int64_t n, int64_t width) const {
    if constexpr (kSame) {
      return x;
    } else {
      rounding_loops().right(x, n, width, out_.data());
      return out_.data();
    }
  }

  /// [width, n], as a left factor.
  const O* left_transposed(const A* x, int64_t n, int64_t width) const {
    if constexpr (kSame) {
      pack_columns<O>(x, n, width, out_.data(), n);
      return out_.data();
    } else {
      pack_columns<A>(x, n, width, turned_.data(), n);
      return left(turned_.data(), width, n);
    }
  }

  /// [width, n], as a right factor.
  const O* right_transposed(const A* x, int64_t n, int64_t width) const {
    if constexpr (kSame) {
      return left_transposed(x, n, width);
    } else {
      pack_columns<A>(x, n, width, turned_.data(), n);
      return right(turned_.data(), width, n);
    }
  }

 private:
  Buffer<O> out_;
  Buffer<A> turned_;
};

}  // namespace hopmix::kernels

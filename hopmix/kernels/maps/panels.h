// Right factors of large products, copied into panels of kPanel columns. A panel lies in one piece
// in the L2 cache, where the rows of a matrix a power of two wide would share a few lines; what is
// copied is converted, transposed or interleaved on the way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopmix/kernels/base/operands.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/gemm.h"

namespace hopmix::kernels {

inline constexpr int64_t kPanel = 64;

/// Rows of a product that are made at a time.
inline constexpr int64_t kRowBlock = 96;

/// Rows of a right factor that products of O count: an even number in bfloat16.
template <typename O>
constexpr int64_t depth_of(int64_t rows) {
  return std::is_same_v<O, Bfloat16> ? padded(rows) : rows;
}

/// The type that products take of what is stored as T: T, or float for bfloat16 where this
/// processor has no products of it. Calls f.template operator()<O>().
template <typename T, typename F>
void with_operands(const F& f) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    if (!has_bfloat16_gemm()) return f.template operator()<float>();
  }
  f.template operator()<T>();
}

/// A right factor B [depth, columns] in panels.
template <typename O>
class Panels {
 public:
  Panels(int64_t rows, int64_t columns)
      : depth_(depth_of<O>(rows)),
        columns_(columns),
        size_(padded(rows) * kPanel),
        data_(count() * size_) {}

  /// For a factor of fewer rows than the first.
  void set_rows(int64_t rows) { depth_ = depth_of<O>(rows); }

  int64_t count() const { return (columns_ + kPanel - 1) / kPanel; }
  int64_t depth() const { return depth_; }
  /// Of panel p, and how far apart its rows lie.
  int64_t width(int64_t p) const { return std::min(kPanel, columns_ - p * kPanel); }
  int64_t stride(int64_t p) const { return padded(width(p)); }

  /// Panel p of B = x, [depth, columns] row-major.
  template <typename T>
  void pack(const MatrixView<T>& x, int64_t p) const {
    const MatrixView<T> part{x.data + p * kPanel, x.rows, width(p), x.stride};
    if constexpr (std::is_same_v<O, Bfloat16>) {
      const Buffer<O> left(depth_ * stride(p));
      pack_left<O>(part, 0, depth_, stride(p), left.data());
      pack_right<O>(left.data(), depth_, stride(p), panel(p));
    } else {
      pack_left<O>(part, 0, depth_, stride(p), panel(p));
    }
  }

  /// Panel p of B = x^T, x [columns, depth] row-major.
  template <typename T>
  void pack_transposed(const MatrixView<T>& x, int64_t p) const {
    const int64_t first = p * kPanel, n = width(p);
    if constexpr (std::is_same_v<O, T> && std::is_same_v<O, float>) {
      if (n % 4 == 0 && x.cols % 4 == 0) {
        transpose_words(x.data + first * x.stride, n, x.cols, x.stride, panel(p), stride(p));
        return;
      }
    }
    const int64_t wide = padded(x.cols);
    const Buffer<O> left(stride(p) * wide), right(wide * stride(p));
    pack_left<O>(x, first, stride(p), wide, left.data());
    pack_columns<O>(left.data(), stride(p), wide, right.data(), stride(p));
    std::copy_n(right.data(), depth_ * stride(p), panel(p));
  }

  /// C [rows, width(p)] (+)= A times panel p, A [rows, depth].
  void multiply_by(int64_t p, int64_t rows, const O* a, int64_t lda, Accumulator<O>* c,
                   int64_t ldc, bool add) const {
    multiply<O>(rows, width(p), depth_, a, lda, panel(p), stride(p), c, ldc, add);
  }

 private:
  O* panel(int64_t p) const { return data_ + p * size_; }

  int64_t depth_, columns_, size_;  // of a panel
  Buffer<O> data_;
};

/// Rows of x as a left factor [rows, depth_of(cols)]: where they lie if products take them so, else
/// in `memory`, which has room for them.
template <typename O, typename T>
const O* left_factor(const MatrixView<T>& x, int64_t first, int64_t rows, const Buffer<O>& memory,
                     int64_t* stride) {
  if constexpr (std::is_same_v<O, T>) {
    if (depth_of<O>(x.cols) == x.cols) {
      *stride = x.stride;
      return x.data + first * x.stride;
    }
  }
  *stride = padded(x.cols);
  pack_left<O>(x, first, rows, *stride, memory.data());
  return memory.data();
}

}  // namespace hopmix::kernels

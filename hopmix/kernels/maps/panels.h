// Right factors of large products, copied into panels of a few columns. A panel is contiguous in
// the L2 cache, where the rows of a matrix whose width is a power of two would compete for a few
// lines. Copying also converts, transposes or interleaves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hopmix/kernels/base/operands.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/gemm.h"

namespace hopmix::kernels {

/// Rows of a product that are computed at a time.
inline constexpr int64_t kRowBlock = 96;

/// The number of right-factor rows that products of O require: rounded up to even in bfloat16.
template <typename O>
constexpr int64_t depth_of(int64_t rows) {
  return std::is_same_v<O, Bfloat16> ? padded(rows) : rows;
}

/// A right factor B [depth, columns] in panels.
template <typename O>
class Panels {
 public:
  Panels(int64_t rows, int64_t columns)
      : depth_(depth_of<O>(rows)),
        columns_(columns),
        panel_(gemm_engine().panel),
        size_(padded(rows) * panel_),
        data_(count() * size_) {}

  /// Resizes for a factor with fewer rows than the first.
  void set_rows(int64_t rows) { depth_ = depth_of<O>(rows); }

  int64_t count() const { return (columns_ + panel_ - 1) / panel_; }
  int64_t depth() const { return depth_; }
  /// The columns of panel p, and the distance between its rows.
  int64_t first(int64_t p) const { return p * panel_; }
  int64_t width(int64_t p) const { return std::min(panel_, columns_ - first(p)); }
  int64_t stride(int64_t p) const { return padded(width(p)); }

  /// Panel p of B = x, [depth, columns] row-major.
  template <typename T>
  void pack(const MatrixView<T>& x, int64_t p) const {
    const MatrixView<T> part{x.data + first(p), x.rows, width(p), x.stride};
    if constexpr (std::is_same_v<O, Bfloat16>) {
      const Buffer<O> left(depth_ * stride(p));
      pack_left<O>(part, 0, depth_, stride(p), left.data());
      pack_right<O>(left.data(), depth_, stride(p), panel(p));
    } else {
      pack_left<O>(part, 0, depth_, stride(p), panel(p));
    }
  }

  /// Rows [first, first + n) of all panels of B = x, where `n` is even or the last. Reads rows from
  /// end to end, which the hardware prefetches best.
  template <typename T>
  void pack_rows(const MatrixView<T>& x, int64_t from, int64_t n) const {
    if constexpr (std::is_same_v<O, T> && !std::is_same_v<O, Bfloat16>) {
      for (int64_t i = from; i < from + n; ++i) {
        const T* row = x.data + i * x.stride;
        for (int64_t p = 0; p < count(); ++p) {
          O* to = panel(p) + i * stride(p);
          const int64_t whole = width(p) / kPad * kPad;
          for (int64_t c = 0; c < whole; c += kPad) {  // of a length that the compiler knows
            std::memcpy(to + c, row + first(p) + c, kPad * sizeof(O));
          }
          for (int64_t c = whole; c < stride(p); ++c) to[c] = c < width(p) ? row[first(p) + c] : 0;
        }
      }
    } else {
      const int64_t rows = padded(n);
      const Buffer<O> left(rows * panel_);
      for (int64_t p = 0; p < count(); ++p) {
        const MatrixView<T> part{x.data + first(p), std::min(x.rows, from + n), width(p), x.stride};
        pack_left<O>(part, from, depth_of<O>(n), stride(p), left.data());
        pack_right<O>(left.data(), depth_of<O>(n), stride(p), panel(p) + from * stride(p));
      }
    }
  }

  /// Panel p of B = x^T, x [columns, depth] row-major.
  template <typename T>
  void pack_transposed(const MatrixView<T>& x, int64_t p) const {
    const int64_t begin = first(p), n = width(p);
    if constexpr (std::is_same_v<O, T> && std::is_same_v<O, float>) {
      if (n % 4 == 0 && x.cols % 4 == 0) {
        transpose_words(x.data + begin * x.stride, n, x.cols, x.stride, panel(p), stride(p));
        return;
      }
    }
    const int64_t wide = padded(x.cols);
    const Buffer<O> left(stride(p) * wide), right(wide * stride(p));
    pack_left<O>(x, begin, stride(p), wide, left.data());
    pack_columns<O>(left.data(), stride(p), wide, right.data(), stride(p));
    std::copy_n(right.data(), depth_ * stride(p), panel(p));
  }

  /// C [rows, width(p)] (+)= A times panel p, A [rows, depth].
  void multiply_by(int64_t p, int64_t rows, const O* a, int64_t lda, Accumulator<O>* c, int64_t ldc,
                   bool add) const {
    multiply<O>(rows, width(p), depth_, a, lda, panel(p), stride(p), c, ldc, add);
  }

 private:
  O* panel(int64_t p) const { return data_ + p * size_; }

  int64_t depth_, columns_, panel_;
  int64_t size_;  // of a panel
  Buffer<O> data_;
};

template <typename T>
MatrixView<T> matrix(const T* data, int64_t rows, int64_t cols) {
  return {data, rows, cols, cols};
}

/// Rows of x as a left factor [rows, depth_of(cols)]: in place if products accept them so,
/// otherwise in `memory`, which has room for them.
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

/// Rows [0, n) of a product with panel p, plus the bias of its columns unless null, written to
/// `out`; through `sums` if T is not the type of sums.
template <typename T, typename O, typename A = Accumulator<T>>
void make_columns(const Panels<O>& panels, int64_t p, int64_t n, const O* left, int64_t stride,
                  const T* bias, T* out, int64_t ldo, const Buffer<A>& sums) {
  const int64_t cols = panels.width(p);
  A* c;
  int64_t ldc;
  if constexpr (std::is_same_v<T, A>) {
    c = out, ldc = ldo;
  } else {
    c = sums.data(), ldc = cols;
  }
  for (int64_t i = 0; bias != nullptr && i < n; ++i) {
    for (int64_t j = 0; j < cols; ++j) c[i * ldc + j] = convert<A>(bias[j]);
  }
  panels.multiply_by(p, n, left, stride, c, ldc, /*add=*/bias != nullptr);
  if constexpr (!std::is_same_v<T, A>) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < cols; ++j) out[i * ldo + j] = convert<T>(c[i * ldc + j]);
    }
  }
}

}  // namespace hopmix::kernels

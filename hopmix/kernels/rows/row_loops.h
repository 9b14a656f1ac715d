// What the kernels do with the reads of a block of rows, compiled for every instruction set and
// chosen at run time. Widths and columns are padded ones (padded.h).
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/reads.h"
#include "hopmix/kernels/rows/slots.h"

namespace hopmix::kernels {

/// `base` is the first column of a slot buffer; a read lies at base + reads.at(i)[r].
template <typename A>
struct RowLoops {
  /// out = factor x_i . (what is read).
  void (*dots)(const ReadsView&, BlockRows<const A> x, const A* base, int64_t width, A factor,
               const PerRead<A>& out);

  /// p = softmax of p, row by row; 0 behind the end of a row.
  void (*softmax)(const ReadsView&, const PerRead<A>& p);

  /// mean_i = sum p u, and then p = factor_i p (u - mean_i). `mean` and `factor` count from the
  /// first row of the reads and may be null: not wanted; then p stays.
  void (*softmax_backward)(const ReadsView&, const PerRead<A>& p, const PerRead<A>& u, A* mean,
                           const A* factor);

  /// out_i = sum of w (what is read), columns [from, to).
  void (*gather)(const ReadsView&, const PerRead<A>& w, const A* base, BlockRows<A> out,
                 int64_t from, int64_t to);

  /// (What is read) += w x_i, last row first, columns [from, to).
  void (*scatter)(const ReadsView&, const PerRead<A>& w, BlockRows<const A> x, A* base,
                  int64_t from, int64_t to);
};

template <typename A>
RowLoops<A> row_loops();

/// Tokens that get their slots.
struct Entering {
  const int32_t* tokens = nullptr;  // null: those from `first` on
  int64_t first = 0, count = 0;
  const Slots* slots = nullptr;

  int64_t token(int64_t n) const { return tokens ? tokens[n] : first + n; }
};

/// Calls body with pieces of `all` short enough that what one loop wrote is near for the next.
template <typename Body>
void in_pieces(const Entering& all, const Body& body) {
  constexpr int64_t kPiece = 32;
  for (int64_t n = 0; n < all.count; n += kPiece) {
    const int64_t count = all.count - n < kPiece ? all.count - n : kPiece;
    body(Entering{all.tokens ? all.tokens + n : nullptr, all.first + n, count, all.slots});
  }
}

template <typename T>
struct EnterLoops {
  using A = Accumulator<T>;
  /// Slots = rows of the head, padded with zeros.
  void (*copy)(const Entering&, HeadOf<const T> from, RowsAt<A> to);
  /// Slots += scale_i row i.
  void (*add)(const Entering&, HeadOf<const T> scale, HeadOf<const T> from, RowsAt<A> to);
  /// Slots = 0.
  void (*zero)(const Entering&, int64_t width, RowsAt<A> to);
};

template <typename T>
EnterLoops<T> enter_loops();

}  // namespace hopmix::kernels

// The recurrence of glr with explicit coefficients, compiled for every instruction set.
#pragma once

#include <cstdint>

#include "hopmix/kernels/rows/row_loops.h"

namespace hopmix::kernels {

/// Widths and columns are padded ones.
template <typename A>
struct GlrBlock {
  int64_t first = 0;              // row that "by row" counts from
  const A* alpha_diag;            // by row
  RowsAt<const A> x;              // by slot
  RowsAt<A> y;                    // by slot
  BlockRows<A> direct;            // by row: sum of alpha_ij x_j
  BlockRows<A> out;               // by row: written by solve(), the same as y
  BlockRows<const A> grad_y;      // by row
  RowsAt<A> dy_from_readers, dx;  // by slot: what readers send back to y and x
  BlockRows<A> lambda;            // by row, written: dLoss/dy
};

/// Coefficients of the reads of some rows, or their gradients.
template <typename A>
struct GlrReads {
  using Number = A;
  Reads reads;
  PerRead<A> alpha, beta;
};

template <typename A>
struct GlrLoops {
  /// y of these rows, in order, from `direct`, columns [from, to).
  void (*solve)(const GlrBlock<A>&, const GlrReads<A>&, const Slots&, int64_t from, int64_t to);
  /// lambda and dy_from_readers of these rows, last first, columns [from, to).
  void (*solve_transposed)(const GlrBlock<A>&, const GlrReads<A>&, const Slots&, int64_t from,
                           int64_t to);
  /// dx from lambda of these rows, last first, columns [from, to).
  void (*input_gradients)(const GlrBlock<A>&, const GlrReads<A>&, const Slots&, int64_t from,
                          int64_t to);
  /// out_i = lambda_i . x_i of rows [begin, end).
  void (*diagonal_gradients)(const GlrBlock<A>&, const Slots&, int64_t begin, int64_t end,
                             int64_t width, A* out);
};

template <typename A>
GlrLoops<A> glr_loops();

}  // namespace hopmix::kernels

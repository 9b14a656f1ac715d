// The recurrence of glr_attention, compiled for every instruction set. README.md has the equations.
#pragma once

#include <cstdint>

#include "hopmix/kernels/rows/row_loops.h"

namespace hopmix::kernels {

/// What the loops see of a block of rows. Widths and columns are padded ones.
template <typename A>
struct GlrAttentionBlock {
  int64_t first = 0;           // its first row; "by row" counts from there
  BlockRows<const A> v;        // by row
  const A *gate, *d, *d_self;  // by row
  RowsAt<A> z;                 // by slot
  BlockRows<A> y;              // by row: written by solve()
  BlockRows<const A> grad_y;   // by row
  RowsAt<A> dz_from_readers;   // by slot: what the readers of a token send back to z
  BlockRows<A> dz, dv;         // by row, written: dLoss/dz; dLoss/dv if want_dv
  A *dd, *dd_self;             // by row, written unless null
  bool want_dv;
};

template <typename A>
struct GlrAttentionLoops {
  /// z and y of these rows, in order, columns [from, to).
  void (*solve)(const GlrAttentionBlock<A>&, const Reads&, const PerRead<A>& p, const Slots&,
                int64_t from, int64_t to);
  /// dz, dz_from_readers and dv of these rows, last first, columns [from, to).
  void (*solve_transposed)(const GlrAttentionBlock<A>&, const Reads&, const PerRead<A>& p,
                           const Slots&, int64_t from, int64_t to);
  /// dd and dd_self of rows [begin, end).
  void (*gate_gradients)(const GlrAttentionBlock<A>&, const Slots&, int64_t begin, int64_t end,
                         int64_t width);
};

template <typename A>
GlrAttentionLoops<A> glr_attention_loops();

}  // namespace hopmix::kernels

// The inner loops of glr_attention, compiled for every instruction set. README.md has the
// equations.
#pragma once

#include <cstdint>

#include "hopmix/kernels/head_rows.h"
#include "hopmix/kernels/padded.h"
#include "hopmix/kernels/reads.h"
#include "hopmix/kernels/slots.h"

namespace hopmix::kernels {

/// What the loops see of a block of rows; what is "by row" counts from the block's first, what is
/// "by slot" holds what is read. Widths and columns are padded ones.
template <typename A>
struct GlrBlock {
  int64_t first = 0;             // row of the block's first
  RowsAt<const A> q, v;          // by row
  const A *gate, *d, *d_self;    // by row
  RowsAt<A> k, z;                // by slot
  RowsAt<A> y;                   // by row: written by solve()
  RowsAt<const A> grad_y;        // by row
  RowsAt<A> later, dk;           // by slot: what the readers of a token send back
  RowsAt<A> total;               // by row: dLoss/dz
  RowsAt<A> dq, dv;              // by row: written
  A *dgate, *dd, *dd_self;       // by row: written
  int64_t key_width, value_width;
  A scale;
  bool want_logits, want_dq, want_dv;  // which gradients; logits for dq or dk
};

/// Numbers for each read of some rows of a block.
template <typename A>
struct GlrReads {
  Reads reads;
  PerRead<A> p, u;
};

/// Tokens that get their slots: all that is kept of them is copied there.
template <typename T>
struct GlrEntering {
  const int32_t* tokens = nullptr;  // null: those from `first` on
  int64_t first = 0, count = 0;
  HeadOf<const T> k, v, d;                 // by token
  HeadOf<const Accumulator<T>> y = {};  // by token, in the backward: z = y + d v, nothing sent back
};

template <typename T>
using GlrEnter = void (*)(const GlrBlock<Accumulator<T>>&, const GlrEntering<T>&, const Slots&);

template <typename T>
GlrEnter<T> glr_enter();

template <typename A>
struct GlrLoops {
  /// p = softmax of the logits.
  void (*softmax)(const GlrBlock<A>&, GlrReads<A>&);
  /// z and y of these rows, in order, columns [from, to).
  void (*solve)(const GlrBlock<A>&, const GlrReads<A>&, const Slots&, int64_t from, int64_t to);
  /// total, later and dv of these rows, last first, columns [from, to).
  void (*solve_transposed)(const GlrBlock<A>&, const GlrReads<A>&, const Slots&, int64_t from,
                           int64_t to);
  /// dq, dgate, dd, dd_self of these rows; p becomes the gradient of the logits times scale.
  void (*row_gradients)(const GlrBlock<A>&, GlrReads<A>&, const Slots&);
  /// dk of what these rows read, columns [from, to).
  void (*key_gradients)(const GlrBlock<A>&, const GlrReads<A>&, int64_t from, int64_t to);
};

template <typename A>
GlrLoops<A> glr_loops();

}  // namespace hopmix::kernels

// The inner loops of glr_softmax, compiled for every instruction set. README.md has the equations.
#pragma once

#include <cstdint>

#include "hopmix/kernels/rows/row_loops.h"

namespace hopmix::kernels {

/// Numbers of the reads of some rows.
template <typename A>
struct JointReads {
  using Number = A;
  Reads reads;
  PerRead<A> direct, recurrent;  // logits, then weights, of x_j and y_j; at last d score in direct
  PerRead<A> d_direct, d_recurrent;  // dLoss/dlogits of x_j and y_j
};

/// What the loops see of a block of rows. Widths and columns are padded ones.
template <typename A>
struct JointBlock {
  int64_t first = 0;    // its first row; "by row" counts from there
  const A *d_self, *g;  // by row; g by slot if gate_on_read
  const A* d;           // by slot
  bool gate_on_read = false;
  A* self;                        // by row: weight of x_i
  RowsAt<const A> v;              // by slot
  RowsAt<A> y;                    // by slot
  BlockRows<A> out;               // by row: written by solve(), the same as y
  BlockRows<const A> grad_y;      // by row
  RowsAt<A> dy_from_readers, dv;  // by slot: what readers send back to y and v
  BlockRows<A> lambda;            // by row, written: dLoss/dy
  A *dd_self, *dg;                // by row, written; dg not if gate_on_read
  A scale;
};

template <typename A>
struct JointLoops {
  /// direct = the scores, in place: both kinds of weight and self.
  void (*weigh)(const JointBlock<A>&, const JointReads<A>&);
  /// y of these rows, in order, columns [from, to).
  void (*solve)(const JointBlock<A>&, const JointReads<A>&, const Slots&, int64_t from, int64_t to);
  /// lambda, dy_from_readers and dv of these rows, last first, columns [from, to).
  void (*solve_transposed)(const JointBlock<A>&, const JointReads<A>&, const Slots&, int64_t from,
                           int64_t to);
  /// d_direct and d_recurrent hold lambda_i . v_j and lambda_i . y_j: makes them gradients of the
  /// logits, dd_self and dg, and `direct` becomes dLoss/d(q.k). Widths are padded.
  void (*d_logits)(const JointBlock<A>&, const JointReads<A>&, const Slots&, int64_t width);
};

template <typename A>
JointLoops<A> joint_loops();

}  // namespace hopmix::kernels

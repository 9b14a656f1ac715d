// The loops of matrix_step.h over the state of one head, compiled for every instruction set.
#pragma once

#include <cstdint>

namespace hopmix::kernels {

/// Vectors padded with zeros (padded.h); states [keys, values] are not.
template <typename A>
struct StepHead {
  int64_t keys, values;
  const A *q, *k;   // [keys], q times the scale
  const A* decay;   // [keys], factors
  const A* v;       // [values]
  A beta;           // of correct()
  const A* before;  // null for zero
  A* after;         // elsewhere, or the same
  A* o;             // [values]
};

template <typename A>
struct MatrixStepLoops {
  /// after = diag(decay) before + k v^T, o = after^T q.
  void (*add)(const StepHead<A>&);
  /// The same with beta (v - (diag(decay) before)^T k) instead of v.
  void (*correct)(const StepHead<A>&);
  /// x = e^x; n is a multiple of kPad.
  void (*exponentials)(int64_t n, A* x);
};

template <typename A>
MatrixStepLoops<A> matrix_step_loops();

}  // namespace hopmix::kernels

// The products of gemm.h in float and double, compiled for every instruction set.
#pragma once

#include "hopmix/kernels/gemm.h"

namespace hopmix::kernels {

/// Each element is a sum over k from the first to the last term, by fused multiply-adds where the
/// processor has them, from 0 or with `add` from C.
template <typename A>
Gemm<A> gemm_loops();

/// Columns of float that they make at a time: panels of B that wide fill all lines of the L1 cache.
int64_t gemm_loop_columns();

}  // namespace hopmix::kernels

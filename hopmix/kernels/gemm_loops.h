// The products of gemm.h in float and double, compiled for every instruction set.
#pragma once

#include "hopmix/kernels/gemm.h"

namespace hopmix::kernels {

/// Each element is a sum over k from the first to the last term, by fused multiply-adds where the
/// processor has them, from 0 or with `add` from C.
template <typename A>
GemmTile<A> gemm_loops();

}  // namespace hopmix::kernels

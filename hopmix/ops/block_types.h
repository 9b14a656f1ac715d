// Which types the kernels by blocks are made of, for tensors of a dtype.
#pragma once

#include <c10/core/ScalarType.h>

#include "hopmix/kernels/gemm.h"
#include "hopmix/ops/engines.h"

namespace hopmix::ops {

/// Calls f.template operator()<T, O>() with T the storage type and O what products take: bfloat16
/// becomes float where the processor has no products of it.
template <typename F>
void with_block_types(at::ScalarType dtype, const F& f) {
  using kernels::Bfloat16;
  ensure_gemm_engine();
  if (dtype == at::kDouble) {
    f.template operator()<double, double>();
  } else if (dtype == at::kFloat) {
    f.template operator()<float, float>();
  } else if (kernels::has_bfloat16_gemm()) {
    f.template operator()<Bfloat16, Bfloat16>();
  } else {
    f.template operator()<Bfloat16, float>();
  }
}

}  // namespace hopmix::ops

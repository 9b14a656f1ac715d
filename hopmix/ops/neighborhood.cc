// neighborhood: checks, CPU and meta kernels. The definition is in kernels/rows/neighborhood.h. No
// gradient: what it takes and gives are positions.
#include "hopmix/kernels/rows/neighborhood.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {
namespace {

using Cu = const std::optional<Tensor>&;

constexpr char kOp[] = "neighborhood";

Arguments check(const Tensor& indices, at::IntArrayRef widths, Cu cu) {
  Arguments args(kOp);
  args.positions("indices", indices, {"B", "T", "H", "K"});
  args.cu_seqlens(cu);
  TORCH_CHECK_VALUE(!widths.empty(), kOp, ": widths is [], but must have a width for each hop");
  for (const int64_t k : widths) {
    TORCH_CHECK_VALUE(k >= 1 && indices.sym_size(3) >= k, kOp, ": widths is ", widths,
                      ", but each must be from 1 to the ", indices.sym_size(3),
                      " that indices lists");
  }
  return args;
}

int64_t size_of(at::IntArrayRef widths, bool cumulative) {
  const int64_t size = kernels::neighborhood_size({widths.data(), widths.size()}, cumulative);
  TORCH_CHECK_VALUE(size >= 0, kOp, ": widths is ", widths,
                    ", but their product must be below 2^31");
  return size;
}

Tensor new_output(const Tensor& indices, int64_t size) {
  return at::empty_symint(
      {indices.sym_size(0), indices.sym_size(1), indices.sym_size(2), c10::SymInt(size)},
      indices.options());
}

Tensor neighborhood_meta(const Tensor& indices, at::IntArrayRef widths, bool cumulative, Cu cu) {
  check(indices, widths, cu);
  return new_output(indices, size_of(widths, cumulative));
}

Tensor neighborhood_cpu(const Tensor& indices, at::IntArrayRef widths, bool cumulative, Cu cu) {
  const Arguments args = check(indices, widths, cu);
  const Tensor out = new_output(indices, size_of(widths, cumulative));
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundRetrieval retrieved(args, indices, sequences, /*strictly_earlier=*/false);
  kernels::neighborhood({retrieved.data(), args.size("H"), args.size("K"), sequences},
                        {widths.data(), widths.size()}, cumulative, write<int32_t>(out));
  return out;
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  m.def(
      "neighborhood(Tensor indices, int[] widths, bool cumulative, Tensor? cu_seqlens=None)"
      " -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) { m.impl("neighborhood", &neighborhood_cpu); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { m.impl("neighborhood", &neighborhood_meta); }

}  // namespace

Tensor neighborhood(const Tensor& indices, at::IntArrayRef widths, bool cumulative,
                    const std::optional<Tensor>& cu_seqlens) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::neighborhood", "")
      .typed<decltype(neighborhood_cpu)>()
      .call(indices, widths, cumulative, cu_seqlens);
}

}  // namespace hopmix::ops

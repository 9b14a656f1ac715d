// The definition is in kernels/rows/neighborhood.h. No gradient: what it takes and gives are
// positions.
#include "hopmix/kernels/rows/neighborhood.h"

#include <c10/util/Exception.h>

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

void check(Call& c) {
  const std::vector<int64_t> widths = c.value("widths").toIntVector();
  const c10::SymInt listed = c.arguments().sym_size("K");
  const std::string& name = c.arguments().op();
  TORCH_CHECK_VALUE(!widths.empty(), name, ": widths is [], but must have a width for each hop");
  for (const int64_t k : widths) {
    TORCH_CHECK_VALUE(k >= 1 && listed >= k, name, ": widths is ", at::IntArrayRef(widths),
                      ", but each must be from 1 to the ", listed, " that indices lists");
  }
  const int64_t size = kernels::neighborhood_size(widths, c.flag("cumulative"));
  TORCH_CHECK_VALUE(size >= 0, name, ": widths is ", at::IntArrayRef(widths),
                    ", but their product must be below 2^31");
  c.arguments().define("W", size);
}

const Operator op({
    .name = "neighborhood",
    .arguments = {positions("Tensor indices", {"B", "T", "H", "K"}), option("int[] widths"),
                  option("bool cumulative"), sequences()},
    .outputs = {positions("Tensor sets", {"B", "T", "H", "W"})},
    .check = check,
    .forward =
        [](const Call& c) {
          const std::vector<int64_t> widths = c.value("widths").toIntVector();
          const BoundRetrieval retrieved = c.retrieval(/*strictly_earlier=*/false);
          kernels::neighborhood({retrieved.data(), c.size("H"), c.size("K"), c.sequences()}, widths,
                                c.flag("cumulative"), c.out<int32_t>("sets"));
        },
});

}  // namespace

Tensor neighborhood(const Tensor& indices, at::IntArrayRef widths, bool cumulative,
                    const std::optional<Tensor>& cu_seqlens) {
  return op.call<Tensor>(indices, widths, cumulative, cu_seqlens);
}

}  // namespace hopmix::ops

// The mathematics is in kernels/scan/selective_scan.h.
#include "hopmix/kernels/scan/selective_scan.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

using States = std::tuple<Tensor, Tensor>;

template <typename T>
kernels::SelectiveScanInputs<T> inputs(const Call& c) {
  using A = kernels::Accumulator<T>;
  return {c.in<T>("u"), c.in<T>("delta"),         c.in<A>("A"), c.in<T>("B"), c.in<T>("C"),
          c.in<A>("D"), c.in<A>("initial_state"), c.size("E"),  c.size("S"),  c.sequences()};
}

const Operator op({
    .name = "selective_scan",
    .arguments = {tensor("Tensor u", {"B", "T", "E"}), tensor("Tensor delta", {"B", "T", "E"}),
                  state("Tensor A", {"E", "S"}), tensor("Tensor B", {"B", "T", "S"}),
                  tensor("Tensor C", {"B", "T", "S"}), state("Tensor? D=None", {"E"}),
                  state("Tensor? initial_state=None", {"N", "E", "S"}), sequences()},
    .outputs = {tensor("Tensor y", {"B", "T", "E"}), state("Tensor state", {"N", "E", "S"})},
    // The states before each piece of every sequence, which the backward begins from.
    .kept = {kept_state("checkpoints", {"rows", "S", "padded E"})},
    .some_gradients = true,
    .check =
        [](Call& c) {
          Arguments& args = c.arguments();
          TORCH_CHECK_VALUE(args.sym_size("S") >= 1, args.op(), ": A is ",
                            c.tensor("A").sym_sizes(), ", but must be [E, S] with S at least 1");
          const c10::SymInt pad = kernels::kPad;
          args.define("rows", kernels::scan_checkpoint_rows<c10::SymInt>(
                                  args.sym_size("B") * args.sym_size("T"), args.sym_size("N")));
          args.define("padded E", (args.sym_size("E") + pad - 1) / pad * pad);
        },
    .forward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            using A = kernels::Accumulator<T>;
            A* const checkpoints = c.out<A>("checkpoints");
            if (checkpoints != nullptr) {  // short sequences leave rows out
              std::fill_n(checkpoints, c.size("rows") * c.size("S") * c.size("padded E"), A{0});
            }
            kernels::selective_scan<T>(inputs<T>(c), c.out<T>("y"), c.out<A>("state"), checkpoints);
          });
        },
    .backward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            using A = kernels::Accumulator<T>;
            kernels::selective_scan_backward<T>(
                inputs<T>(c), c.in<A>("checkpoints"), c.in<T>("grad_y"), c.in<A>("grad_state"),
                {c.grad<T>("u"), c.grad<T>("delta"), c.grad<A>("A"), c.grad<T>("B"), c.grad<T>("C"),
                 c.grad<A>("D"), c.grad<A>("initial_state")});
          });
        },
});

}  // namespace

States selective_scan(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                      const Tensor& C, const std::optional<Tensor>& D,
                      const std::optional<Tensor>& initial_state,
                      const std::optional<Tensor>& cu_seqlens) {
  return op.call<States>(u, delta, A, B, C, D, initial_state, cu_seqlens);
}

}  // namespace hopmix::ops

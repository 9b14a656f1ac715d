// The mathematics is in kernels/scan/linear_recurrence.h.
#include "hopmix/kernels/scan/linear_recurrence.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

using States = std::tuple<Tensor, Tensor>;

template <typename T>
kernels::LinearRecurrenceInputs<T> inputs(const Call& c) {
  return {c.in<T>("a"), c.in<T>("x"), c.in<kernels::Accumulator<T>>("initial_state"), c.size("E"),
          c.sequences()};
}

const Operator op({
    .name = "linear_recurrence",
    .arguments = {tensor("Tensor a", {"B", "T", "E"}), tensor("Tensor x", {"B", "T", "E"}),
                  state("Tensor? initial_state=None", {"N", "E"}), sequences()},
    .outputs = {tensor("Tensor y", {"B", "T", "E"}), state("Tensor state", {"N", "E"})},
    .kept = {output("y")},
    .some_gradients = true,
    .forward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            kernels::linear_recurrence<T>(inputs<T>(c), c.out<T>("y"),
                                          c.out<kernels::Accumulator<T>>("state"));
          });
        },
    .backward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            using A = kernels::Accumulator<T>;
            kernels::linear_recurrence_backward<T>(
                inputs<T>(c), c.in<T>("y"), c.in<T>("grad_y"), c.in<A>("grad_state"),
                {c.grad<T>("a"), c.grad<T>("x"), c.grad<A>("initial_state")});
          });
        },
});

}  // namespace

States linear_recurrence(const Tensor& a, const Tensor& x,
                         const std::optional<Tensor>& initial_state,
                         const std::optional<Tensor>& cu_seqlens) {
  return op.call<States>(a, x, initial_state, cu_seqlens);
}

}  // namespace hopmix::ops

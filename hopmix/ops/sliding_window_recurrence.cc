// The mathematics is in kernels/scan/sliding_window_recurrence.h.
#include "hopmix/kernels/scan/sliding_window_recurrence.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

using States = std::tuple<Tensor, Tensor>;

template <typename T>
kernels::SlidingWindowInputs<T> inputs(const Call& c) {
  return {c.in<T>("a"), c.in<T>("x"),       c.in<kernels::Accumulator<T>>("initial_state"),
          c.size("E"),  c.integer("block"), c.integer("start"),
          c.sequences()};
}

const Operator op({
    .name = "sliding_window_recurrence",
    .arguments = {tensor("Tensor a", {"B", "T", "E"}), tensor("Tensor x", {"B", "T", "E"}),
                  option("int block"), state("Tensor? initial_state=None", {"N", "2", "E"}),
                  option("int start=0"), sequences()},
    .outputs = {tensor("Tensor y", {"B", "T", "E"}), state("Tensor state", {"N", "2", "E"})},
    .kept = {output("y")},
    .some_gradients = true,
    .check =
        [](Call& c) {
          c.at_least("block", 1);
          c.at_least("start", 0);
        },
    .forward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            kernels::sliding_window_recurrence<T>(inputs<T>(c), c.out<T>("y"),
                                                  c.out<kernels::Accumulator<T>>("state"));
          });
        },
    .backward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            using A = kernels::Accumulator<T>;
            kernels::sliding_window_recurrence_backward<T>(
                inputs<T>(c), c.in<T>("y"), c.in<T>("grad_y"), c.in<A>("grad_state"),
                {c.grad<T>("a"), c.grad<T>("x"), c.grad<A>("initial_state")});
          });
        },
});

}  // namespace

States sliding_window_recurrence(const Tensor& a, const Tensor& x, int64_t block,
                                 const std::optional<Tensor>& initial_state, int64_t start,
                                 const std::optional<Tensor>& cu_seqlens) {
  return op.call<States>(a, x, block, initial_state, start, cu_seqlens);
}

}  // namespace hopmix::ops

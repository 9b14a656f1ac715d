// The mathematics is in kernels/dense/README.md.
#include "hopmix/kernels/dense/dense_recurrence.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::DenseRecurrenceInputs<T> inputs(const Call& c) {
  return {c.in<T>("q"), c.in<T>("k"),      c.in<T>("v"), c.in<T>("gate"),
          c.in<T>("d"), c.in<T>("d_self"), c.size("H"),  c.size("G"),
          c.size("DK"), c.size("DV"),      c.scale(),    c.sequences()};
}

const Operator op({
    .name = "dense_recurrence",
    .arguments = queries_keys_values(
        {tensor("Tensor gate", {"B", "T", "H"}), tensor("Tensor d", {"B", "T", "H"}),
         tensor("Tensor d_self", {"B", "T", "H"}), option("float? scale=None"), sequences()}),
    .outputs = {tensor("Tensor y", {"B", "T", "H", "DV"})},
    // The backward takes small differences of the products of mix, so it is not rounded.
    .kept = {kept_state("mix", {"B", "T", "H", "DV"}), kept_state("lse", {"B", "T", "H"})},
    .kept_always = true,
    .forward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            using A = kernels::Accumulator<T>;
            kernels::dense_recurrence<T>(inputs<T>(c), c.out<T>("y"),
                                         {c.out<A>("mix"), c.out<A>("lse")});
          });
        },
    .backward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            using A = kernels::Accumulator<T>;
            kernels::dense_recurrence_backward<T>(
                inputs<T>(c), c.in<T>("grad_y"), {c.in<A>("mix"), c.in<A>("lse")},
                {c.grad<T>("q"), c.grad<T>("k"), c.grad<T>("v"), c.grad<T>("gate"), c.grad<T>("d"),
                 c.grad<T>("d_self")});
          });
        },
});

}  // namespace

Tensor dense_recurrence(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                        const Tensor& d, const Tensor& d_self, std::optional<double> scale,
                        const std::optional<Tensor>& cu_seqlens) {
  return op.call<Tensor>(q, k, v, gate, d, d_self, scale, cu_seqlens);
}

}  // namespace hopmix::ops

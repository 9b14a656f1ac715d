// The mathematics is in kernels/rows/retrieved_recurrence.h.
#include "hopmix/kernels/rows/retrieved_recurrence.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::RetrievedRecurrenceInputs<T> inputs(const Call& c, const BoundRetrieval& retrieved) {
  return {c.in<T>("q"),      c.in<T>("k"), c.in<T>("v"),  c.in<T>("gate"),
          c.size("H"),       c.size("G"),  c.size("DK"),  c.size("DV"),
          c.integer("hops"), c.scale(),    c.sequences(), retrieved.rows(c.size("H"))};
}

const Operator op({
    .name = "retrieved_recurrence",
    .arguments = queries_keys_values({tensor("Tensor gate", {"B", "T", "H"}), retrieved_positions(),
                                      option("int hops"), option("float? scale=None"),
                                      sequences()}),
    .outputs = {tensor("Tensor z", {"B", "T", "H", "hops + 1", "DV"})},
    .check =
        [](Call& c) {
          c.at_least("hops", 1);
          c.arguments().define("hops + 1", c.integer("hops") + 1);
        },
    .forward =
        [](const Call& c) {
          const BoundRetrieval retrieved = c.retrieval(/*strictly_earlier=*/true);
          c.with_type([&]<typename T>() {
            kernels::retrieved_recurrence(inputs<T>(c, retrieved), c.out<T>("z"));
          });
        },
    .backward =
        [](const Call& c) {
          const BoundRetrieval retrieved = c.retrieval(/*strictly_earlier=*/true);
          c.with_type([&]<typename T>() {
            kernels::retrieved_recurrence_backward<T>(
                inputs<T>(c, retrieved), c.in<T>("grad_z"),
                {c.grad<T>("q"), c.grad<T>("k"), c.grad<T>("v"), c.grad<T>("gate")});
          });
        },
});

}  // namespace

Tensor retrieved_recurrence(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                            const Tensor& indices, int64_t hops, std::optional<double> scale,
                            const std::optional<Tensor>& cu_seqlens) {
  return op.call<Tensor>(q, k, v, gate, indices, hops, scale, cu_seqlens);
}

}  // namespace hopmix::ops

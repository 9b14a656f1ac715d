// sparse_attention, and gather_attention, the same on what was retrieved. The mathematics is in
// kernels/rows/sparse_attention.h.
#include "hopmix/kernels/rows/sparse_attention.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T, typename Rows>
kernels::SparseAttentionInputs<T> inputs(const Call& c, bool include_self, const Rows& rows) {
  return {c.in<T>("q"), c.in<T>("k"), c.in<T>("v"), c.size("H"),   c.size("G"), c.size("DK"),
          c.size("DV"), c.scale(),    include_self, c.sequences(), rows};
}

template <typename Rows>
void forward(const Call& c, bool include_self, const Rows& rows) {
  c.with_type([&]<typename T>() {
    kernels::sparse_attention(inputs<T>(c, include_self, rows), c.out<T>("y"));
  });
}

template <typename Rows>
void backward(const Call& c, bool include_self, const Rows& rows) {
  c.with_type([&]<typename T>() {
    kernels::sparse_attention_backward<T>(inputs<T>(c, include_self, rows), c.in<T>("grad_y"),
                                          {c.grad<T>("q"), c.grad<T>("k"), c.grad<T>("v")});
  });
}

const Operator op({
    .name = "sparse_attention",
    .arguments = queries_keys_values({pattern_rows(), option("bool include_self"),
                                      option("float? scale=None"), sequences()}),
    .outputs = {tensor("Tensor y", {"B", "T", "H", "DV"})},
    .forward = [](const Call& c) { forward(c, c.flag("include_self"), c.rows()); },
    .backward = [](const Call& c) { backward(c, c.flag("include_self"), c.rows()); },
});

const Operator gather({
    .name = "gather_attention",
    .arguments = queries_keys_values({retrieved_positions(), option("float? scale=None"),
                                      sequences()}),
    .outputs = {tensor("Tensor y", {"B", "T", "H", "DV"})},
    .forward =
        [](const Call& c) {
          const BoundRetrieval rows = c.retrieval(/*strictly_earlier=*/false);
          forward(c, /*include_self=*/false, rows.rows(c.size("H")));
        },
    .backward =
        [](const Call& c) {
          const BoundRetrieval rows = c.retrieval(/*strictly_earlier=*/false);
          backward(c, /*include_self=*/false, rows.rows(c.size("H")));
        },
});

}  // namespace

Tensor sparse_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const PatternArg& pattern, bool include_self, std::optional<double> scale,
                        const std::optional<Tensor>& cu_seqlens) {
  return op.call<Tensor>(q, k, v, pattern, include_self, scale, cu_seqlens);
}

Tensor gather_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& indices,
                        std::optional<double> scale, const std::optional<Tensor>& cu_seqlens) {
  return gather.call<Tensor>(q, k, v, indices, scale, cu_seqlens);
}

}  // namespace hopmix::ops

// glr_attention, and retrieved_glr, the same on what was retrieved. The mathematics is in
// kernels/rows/glr_attention.h.
#include "hopmix/kernels/rows/glr_attention.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T, typename Rows>
kernels::GlrAttentionInputs<T> inputs(const Call& c, const Rows& rows) {
  return {c.in<T>("q"),      c.in<T>("k"),  c.in<T>("v"), c.in<T>("gate"), c.in<T>("d"),
          c.in<T>("d_self"), c.size("H"),   c.size("G"),  c.size("DK"),    c.size("DV"),
          c.scale(),         c.sequences(), rows};
}

template <typename Rows>
void forward(const Call& c, const Rows& rows) {
  c.with_type([&]<typename T>() { kernels::glr_attention(inputs<T>(c, rows), c.out<T>("y")); });
}

template <typename Rows>
void backward(const Call& c, const Rows& rows) {
  c.with_type([&]<typename T>() {
    kernels::glr_attention_backward<T>(inputs<T>(c, rows), c.in<T>("y"), c.in<T>("grad_y"),
                                       {c.grad<T>("q"), c.grad<T>("k"), c.grad<T>("v"),
                                        c.grad<T>("gate"), c.grad<T>("d"), c.grad<T>("d_self")});
  });
}

std::vector<Argument> arguments(std::vector<Argument> rows) {
  std::vector<Argument> rest = {tensor("Tensor gate", {"B", "T", "H"}),
                                tensor("Tensor d", {"B", "T", "H"}),
                                tensor("Tensor d_self", {"B", "T", "H"})};
  rest.insert(rest.end(), rows.begin(), rows.end());
  return queries_keys_values(std::move(rest));
}

const Operator op({
    .name = "glr_attention",
    .arguments = arguments({pattern_rows(), option("float? scale=None"), sequences()}),
    .outputs = {tensor("Tensor y", {"B", "T", "H", "DV"})},
    .kept = {output("y")},
    .forward = [](const Call& c) { forward(c, c.rows()); },
    .backward = [](const Call& c) { backward(c, c.rows()); },
});

const Operator retrieved({
    .name = "retrieved_glr",
    .arguments = arguments({retrieved_positions(), option("float? scale=None"), sequences()}),
    .outputs = {tensor("Tensor y", {"B", "T", "H", "DV"})},
    .kept = {output("y")},
    .forward =
        [](const Call& c) {
          const BoundRetrieval rows = c.retrieval(/*strictly_earlier=*/true);
          forward(c, rows.rows(c.size("H")));
        },
    .backward =
        [](const Call& c) {
          const BoundRetrieval rows = c.retrieval(/*strictly_earlier=*/true);
          backward(c, rows.rows(c.size("H")));
        },
});

}  // namespace

Tensor glr_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                     const Tensor& d, const Tensor& d_self, const PatternArg& pattern,
                     std::optional<double> scale, const std::optional<Tensor>& cu_seqlens) {
  return op.call<Tensor>(q, k, v, gate, d, d_self, pattern, scale, cu_seqlens);
}

Tensor retrieved_glr(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                     const Tensor& d, const Tensor& d_self, const Tensor& indices,
                     std::optional<double> scale, const std::optional<Tensor>& cu_seqlens) {
  return retrieved.call<Tensor>(q, k, v, gate, d, d_self, indices, scale, cu_seqlens);
}

}  // namespace hopmix::ops

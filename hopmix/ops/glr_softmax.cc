// The mathematics is in kernels/rows/glr_softmax.h.
#include "hopmix/kernels/rows/glr_softmax.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::GlrSoftmaxInputs<T> inputs(const Call& c) {
  return {c.in<T>("q"),      c.in<T>("k"), c.in<T>("v"), c.in<T>("d"),
          c.in<T>("d_self"), c.in<T>("g"), c.size("H"),  c.size("G"),
          c.size("DK"),      c.size("DV"), c.scale(),    c.flag("gate_on_read"),
          c.sequences(),     c.rows()};
}

const Operator op({
    .name = "glr_softmax",
    .arguments = queries_keys_values(
        {tensor("Tensor d", {"B", "T", "H"}), tensor("Tensor d_self", {"B", "T", "H"}),
         tensor("Tensor g", {"B", "T", "H"}), pattern_rows(), option("float? scale=None"),
         option("bool gate_on_read=False"), sequences()}),
    .outputs = {tensor("Tensor y", {"B", "T", "H", "DV"})},
    .kept = {output("y")},
    .forward =
        [](const Call& c) {
          c.with_type([&]<typename T>() { kernels::glr_softmax(inputs<T>(c), c.out<T>("y")); });
        },
    .backward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            kernels::glr_softmax_backward<T>(inputs<T>(c), c.in<T>("y"), c.in<T>("grad_y"),
                                             {c.grad<T>("q"), c.grad<T>("k"), c.grad<T>("v"),
                                              c.grad<T>("d"), c.grad<T>("d_self"), c.grad<T>("g")});
          });
        },
});

}  // namespace

Tensor glr_softmax(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& d,
                   const Tensor& d_self, const Tensor& g, const PatternArg& pattern,
                   std::optional<double> scale, bool gate_on_read,
                   const std::optional<Tensor>& cu_seqlens) {
  return op.call<Tensor>(q, k, v, d, d_self, g, pattern, scale, gate_on_read, cu_seqlens);
}

}  // namespace hopmix::ops

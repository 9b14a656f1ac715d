// The mathematics is in kernels/rows/glr.h.
#include "hopmix/kernels/rows/glr.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::GlrInputs<T> inputs(const Call& c, const kernels::ReadLayout& reads) {
  return {c.in<T>("alpha_diag"), c.in<T>("alpha"), c.in<T>("beta"), c.in<T>("x"), c.size("H"),
          c.size("D"),           c.sequences(),    c.rows(),        reads};
}

const Operator op({
    .name = "glr",
    .arguments = {tensor("Tensor alpha_diag", {"B", "H", "T"}),
                  tensor("Tensor alpha", {"B", "H", "nnz"}),
                  tensor("Tensor beta", {"B", "H", "nnz"}),
                  tensor("Tensor x", {"B", "T", "H", "D"}), pattern_rows(), sequences()},
    .outputs = {tensor("Tensor y", {"B", "T", "H", "D"})},
    .kept = {output("y")},
    .forward =
        [](const Call& c) {
          const kernels::ReadLayout reads = c.reads("alpha");
          c.with_type([&]<typename T>() { kernels::glr(inputs<T>(c, reads), c.out<T>("y")); });
        },
    .backward =
        [](const Call& c) {
          const kernels::ReadLayout reads = c.reads("alpha");
          c.with_type([&]<typename T>() {
            kernels::glr_backward<T>(
                inputs<T>(c, reads), c.in<T>("y"), c.in<T>("grad_y"),
                {c.grad<T>("alpha_diag"), c.grad<T>("alpha"), c.grad<T>("beta"), c.grad<T>("x")});
          });
        },
});

}  // namespace

Tensor glr(const Tensor& alpha_diag, const Tensor& alpha, const Tensor& beta, const Tensor& x,
           const PatternArg& pattern, const std::optional<Tensor>& cu_seqlens) {
  return op.call<Tensor>(alpha_diag, alpha, beta, x, pattern, cu_seqlens);
}

}  // namespace hopmix::ops

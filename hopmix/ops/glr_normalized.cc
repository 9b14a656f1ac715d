// The mathematics is in kernels/rows/glr_normalized.h.
#include "hopmix/kernels/rows/glr_normalized.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::GlrNormalizedInputs<T> inputs(const Call& c, const kernels::ReadLayout& reads) {
  return {c.in<T>("log_alpha_diag"),
          c.in<T>("log_alpha"),
          c.in<T>("log_beta"),
          c.in<T>("x"),
          c.size("H"),
          c.size("D"),
          c.sequences(),
          c.rows(),
          reads};
}

const Operator op({
    .name = "glr_normalized",
    .arguments = {tensor("Tensor log_alpha_diag", {"B", "H", "T"}),
                  tensor("Tensor log_alpha", {"B", "H", "nnz"}),
                  tensor("Tensor log_beta", {"B", "H", "nnz"}),
                  tensor("Tensor x", {"B", "T", "H", "D"}), pattern_rows(), sequences()},
    // log_z has the dtype of a state: as bfloat16 it would say nothing.
    .outputs = {tensor("Tensor y", {"B", "T", "H", "D"}), state("Tensor log_z", {"B", "T", "H"})},
    .kept = {output("y")},
    .forward =
        [](const Call& c) {
          const kernels::ReadLayout reads = c.reads("log_alpha");
          c.with_type([&]<typename T>() {
            kernels::glr_normalized(inputs<T>(c, reads), c.out<T>("y"),
                                    c.out<kernels::Accumulator<T>>("log_z"));
          });
        },
    .backward =
        [](const Call& c) {
          const kernels::ReadLayout reads = c.reads("log_alpha");
          c.with_type([&]<typename T>() {
            kernels::glr_normalized_backward<T>(
                inputs<T>(c, reads), c.in<T>("y"), c.in<T>("grad_y"),
                c.in<kernels::Accumulator<T>>("grad_log_z"),
                {c.grad<T>("log_alpha_diag"), c.grad<T>("log_alpha"), c.grad<T>("log_beta"),
                 c.grad<T>("x")});
          });
        },
});

}  // namespace

std::tuple<Tensor, Tensor> glr_normalized(const Tensor& log_alpha_diag, const Tensor& log_alpha,
                                          const Tensor& log_beta, const Tensor& x,
                                          const PatternArg& pattern,
                                          const std::optional<Tensor>& cu_seqlens) {
  return op.call<std::tuple<Tensor, Tensor>>(log_alpha_diag, log_alpha, log_beta, x, pattern,
                                             cu_seqlens);
}

}  // namespace hopmix::ops

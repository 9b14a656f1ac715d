// The mathematics is in kernels/maps/README.md.
#include "hopmix/kernels/maps/mlp.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::MlpInputs<T> inputs(const Call& c) {
  return {c.in<T>("x"),  c.in<T>("up"), c.in<T>("up_bias"), c.in<T>("down"), c.in<T>("down_bias"),
          c.size("..."), c.size("K"),   c.size("M"),        c.size("N")};
}

const Operator op({
    .name = "mlp",
    .arguments = {tensor("Tensor x", {"...", "K"}), tensor("Tensor up", {"M", "K"}),
                  tensor("Tensor up_bias", {"M"}), tensor("Tensor down", {"N", "M"}),
                  tensor("Tensor down_bias", {"N"})},
    .outputs = {tensor("Tensor y", {"...", "N"})},
    .kept = {kept("hidden", {"...", "M"})},
    .forward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            kernels::mlp_forward<T>(inputs<T>(c), c.out<T>("hidden"), c.out<T>("y"));
          });
        },
    .backward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            kernels::mlp_backward<T>(inputs<T>(c), c.in<T>("hidden"), c.in<T>("grad_y"),
                                     {c.grad<T>("x"), c.grad<T>("up"), c.grad<T>("up_bias"),
                                      c.grad<T>("down"), c.grad<T>("down_bias")});
          });
        },
});

}  // namespace

Tensor mlp(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
           const Tensor& down_bias) {
  return op.call<Tensor>(x, up, up_bias, down, down_bias);
}

}  // namespace hopmix::ops

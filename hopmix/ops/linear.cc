// The mathematics is in kernels/maps/README.md.
#include "hopmix/kernels/maps/linear.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::LinearInputs<T> inputs(const Call& c) {
  return {c.in<T>("x"), c.size("..."), c.size("K")};
}

const Operator op({
    .name = "linear",
    .arguments = {tensor("Tensor x", {"...", "K"}), tensor("Tensor weight", {"N", "K"}),
                  tensor("Tensor? bias=None", {"N"})},
    .outputs = {tensor("Tensor y", {"...", "N"})},
    .forward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            kernels::linear_forward<T>(
                inputs<T>(c), {{c.in<T>("weight"), c.in<T>("bias"), c.size("N"), c.out<T>("y")}});
          });
        },
    .backward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            kernels::linear_backward<T>(inputs<T>(c),
                                        {{c.in<T>("weight"), c.size("N"), c.in<T>("grad_y"),
                                          c.grad<T>("weight"), c.grad<T>("bias")}},
                                        c.grad<T>("x"));
          });
        },
});

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return op.call<Tensor>(x, weight, bias);
}

}  // namespace hopmix::ops

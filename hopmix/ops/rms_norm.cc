// The mathematics is in kernels/maps/README.md.
#include "hopmix/kernels/maps/rms_norm.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::RmsNormInputs<T> inputs(const Call& c) {
  return {c.in<T>("x"), c.in<T>("weight"), c.size("B") * c.size("T"), c.size("E"), c.number("eps")};
}

const Operator op({
    .name = "rms_norm",
    .arguments = {tensor("Tensor x", {"B", "T", "E"}), tensor("Tensor weight", {"E"}),
                  option("float eps=1e-6")},
    .outputs = {tensor("Tensor y", {"B", "T", "E"})},
    .check =
        [](Call& c) {
          const double eps = c.number("eps");
          TORCH_CHECK_VALUE(std::isfinite(eps) && eps >= 0, c.arguments().op(), ": eps is ", eps,
                            ", but must be finite and at least 0");
        },
    .forward =
        [](const Call& c) {
          c.with_type([&]<typename T>() { kernels::rms_norm(inputs<T>(c), c.out<T>("y")); });
        },
    .backward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            kernels::rms_norm_backward<T>(inputs<T>(c), c.in<T>("grad_y"),
                                          {c.grad<T>("x"), c.grad<T>("weight")});
          });
        },
});

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return op.call<Tensor>(x, weight, eps);
}

}  // namespace hopmix::ops

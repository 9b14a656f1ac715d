// The mathematics is in kernels/scan/short_convolution.h.
#include "hopmix/kernels/scan/short_convolution.h"

#include <c10/util/Exception.h>

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::ShortConvolutionInputs<T> inputs(const Call& c) {
  return {c.in<T>("x"), c.in<T>("weight"), c.in<T>("bias"), c.size("E"),
          c.size("W"),  c.flag("silu"),    c.sequences()};
}

const Operator op({
    .name = "short_convolution",
    .arguments = {tensor("Tensor x", {"B", "T", "E"}), tensor("Tensor weight", {"E", "W"}),
                  tensor("Tensor? bias=None", {"E"}), option("bool silu=False"), sequences()},
    .outputs = {tensor("Tensor y", {"B", "T", "E"})},
    .check =
        [](Call& c) {
          const c10::SymInt taps = c.arguments().sym_size("W");
          TORCH_CHECK_VALUE(taps >= 1 && taps <= kernels::kMostTaps, c.arguments().op(),
                            ": weight is ", c.tensor("weight").sym_sizes(),
                            ", but must be [E, W] with W from 1 to ", kernels::kMostTaps);
        },
    .forward =
        [](const Call& c) {
          c.with_type(
              [&]<typename T>() { kernels::short_convolution(inputs<T>(c), c.out<T>("y")); });
        },
    .backward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            kernels::short_convolution_backward<T>(
                inputs<T>(c), c.in<T>("grad_y"),
                {c.grad<T>("x"), c.grad<T>("weight"), c.grad<T>("bias")});
          });
        },
});

}  // namespace

Tensor short_convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                         bool silu, const std::optional<Tensor>& cu_seqlens) {
  return op.call<Tensor>(x, weight, bias, silu, cu_seqlens);
}

}  // namespace hopmix::ops

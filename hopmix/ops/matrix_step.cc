// matrix_step_: one token of a recurrence with a matrix state, which is updated in place. The
// mathematics is in kernels/decode/matrix_step.h.
#include "hopmix/kernels/decode/matrix_step.h"

#include <c10/util/Exception.h>

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

bool decays_channels(const Call& c) {
  return c.has("log_decay") && c.tensor("log_decay").dim() == 3;
}

void check(Call& c) {
  Arguments& args = c.arguments();
  if (decays_channels(c)) {
    args.tensor("log_decay", c.tensor("log_decay"), {"B", "H", "DK"});
  } else if (c.has("log_decay")) {
    args.tensor("log_decay", c.tensor("log_decay"), {"B", "H"});
  }
  const Tensor& state = c.tensor("state");
  TORCH_CHECK_VALUE(state.is_contiguous(), args.op(), ": state has strides ", state.strides(),
                    ", but must be contiguous, as it is updated in place");
}

void forward(const Call& c) {
  const auto sequences = kernels::Sequences::batched(c.size("B"), 1);
  c.with_type([&]<typename T>() {
    auto* const state = write<kernels::Accumulator<T>>(c.tensor("state"));
    kernels::matrix_step<T>({c.in<T>("q"), c.in<T>("k"), c.in<T>("v"), c.in<T>("log_decay"),
                             decays_channels(c), c.in<T>("beta"), state, c.size("H"), c.size("G"),
                             c.size("DK"), c.size("DV"), c.scale(), sequences},
                            c.out<T>("o"), state);
  });
}

const Operator op({
    .name = "matrix_step_",
    .arguments = {tensor("Tensor q", {"B", "H", "DK"}), tensor("Tensor k", {"B", "G", "DK"}),
                  tensor("Tensor v", {"B", "G", "DV"}), unchecked("Tensor? log_decay"),
                  tensor("Tensor? beta", {"B", "H"}),
                  state("Tensor(a!) state", {"B", "H", "DK", "DV"}), option("float? scale=None")},
    .outputs = {tensor("Tensor o", {"B", "H", "DV"})},
    .check = check,
    .forward = forward,
});

}  // namespace

Tensor matrix_step_(const Tensor& q, const Tensor& k, const Tensor& v,
                    const std::optional<Tensor>& log_decay, const std::optional<Tensor>& beta,
                    const Tensor& state, std::optional<double> scale) {
  return op.call<Tensor>(q, k, v, log_decay, beta, state, scale);
}

}  // namespace hopmix::ops

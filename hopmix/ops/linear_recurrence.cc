// linear_recurrence: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/scan/linear_recurrence.h.
#include "hopmix/kernels/scan/linear_recurrence.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/optional_tensors.h"

namespace hopmix::ops {
namespace {

using Needs = std::array<bool, 3>;

Arguments check(const std::string& op, const Tensor& a, const Tensor& x, Maybe initial, Maybe cu) {
  Arguments args(op);
  args.tensor("a", a, {"B", "T", "E"});
  args.tensor("x", x, {"B", "T", "E"});
  args.cu_seqlens(cu);
  if (initial) args.state("initial_state", *initial, {"N", "E"});
  return args;
}

std::tuple<Tensor, Tensor> forward_meta(const Tensor& a, const Tensor& x, Maybe initial, Maybe cu) {
  const Arguments args = check("linear_recurrence", a, x, initial, cu);
  return {args.empty({"B", "T", "E"}), args.empty({"N", "E"}, args.state_dtype())};
}

std::tuple<Tensor, Tensor> forward_cpu(const Tensor& a, const Tensor& x, Maybe initial, Maybe cu) {
  const Arguments args = check("linear_recurrence", a, x, initial, cu);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const Tensors<2> flat = contiguous(Tensors<2>{a, x});
  const std::optional<Tensor> first = contiguous_if(initial);
  const Tensor y = args.empty({"B", "T", "E"});
  const Tensor state = args.empty({"N", "E"}, args.state_dtype());
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    kernels::linear_recurrence<T>(
        {read<T>(flat[0]), read<T>(flat[1]), read_state<T>(first), args.size("E"), sequences},
        write<T>(y), write<kernels::Accumulator<T>>(state));
  });
  return {y, state};
}

Arguments check_backward(Maybe grad_y, Maybe grad_state, const Tensor& y, const Tensor& a,
                         const Tensor& x, Maybe initial, Maybe cu) {
  Arguments args = check("linear_recurrence_backward", a, x, initial, cu);
  args.tensor("y", y, {"B", "T", "E"});
  if (grad_y) args.tensor("grad_y", *grad_y, {"B", "T", "E"});
  if (grad_state) args.state("grad_state", *grad_state, {"N", "E"});
  return args;
}

// Of a, x and the initial state; without one there is nothing to give back for it.
std::vector<Tensor> new_gradients(const Tensor& a, const Tensor& x, Maybe initial, Needs& needs) {
  needs[2] = needs[2] && initial.has_value();
  return gradients({a, x, initial.value_or(a)}, needs);
}

std::vector<Tensor> backward_meta(Maybe grad_y, Maybe grad_state, const Tensor& y, const Tensor& a,
                                  const Tensor& x, Maybe initial, Maybe cu, Needs needs) {
  check_backward(grad_y, grad_state, y, a, x, initial, cu);
  return new_gradients(a, x, initial, needs);
}

std::vector<Tensor> backward_cpu(Maybe grad_y, Maybe grad_state, const Tensor& y, const Tensor& a,
                                 const Tensor& x, Maybe initial, Maybe cu, Needs needs) {
  const Arguments args = check_backward(grad_y, grad_state, y, a, x, initial, cu);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const Tensors<3> flat = contiguous(Tensors<3>{a, x, y});
  const std::optional<Tensor> first = contiguous_if(initial), gy = contiguous_if(grad_y),
                              gs = contiguous_if(grad_state);
  const std::vector<Tensor> out = new_gradients(a, x, initial, needs);
  with_storage_type(a.scalar_type(), [&]<typename T>() {
    kernels::linear_recurrence_backward<T>(
        {read<T>(flat[0]), read<T>(flat[1]), read_state<T>(first), args.size("E"), sequences},
        read<T>(flat[2]), read_if<T>(gy), read_state<T>(gs),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<kernels::Accumulator<T>>(needs[2], out[2])});
  });
  return out;
}

std::vector<Tensor> call_backward(Maybe grad_y, Maybe grad_state, const Tensor& y, const Tensor& a,
                                  const Tensor& x, Maybe initial, Maybe cu, Needs needs) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::linear_recurrence_backward", "")
      .typed<decltype(backward_cpu)>()
      .call(grad_y, grad_state, y, a, x, initial, cu, needs);
}

class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  using Context = torch::autograd::AutogradContext;

  static std::vector<Tensor> forward(Context* ctx, const Tensor& a, const Tensor& x, Maybe initial,
                                     Maybe cu) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, state] = linear_recurrence(a, x, initial, cu);
    ctx->set_materialize_grads(false);  // a loss on one output sends nothing for the other
    ctx->save_for_backward({y, a, x, initial.value_or(Tensor()), cu.value_or(Tensor())});
    return {y, state};
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    const std::vector<Tensor> saved = ctx->get_saved_variables();
    const auto maybe = defined_or_none;
    const bool initial = saved[3].defined();
    const Needs needs = {ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                         initial && ctx->needs_input_grad(2)};
    std::vector<Tensor> out = call_backward(maybe(grads[0]), maybe(grads[1]), saved[0], saved[1],
                                            saved[2], maybe(saved[3]), maybe(saved[4]), needs);
    for (size_t i = 0; i < needs.size(); ++i) {
      if (!needs[i]) out[i] = Tensor();
    }
    out.resize(4);  // nothing for cu_seqlens
    return out;
  }
};

std::tuple<Tensor, Tensor> forward_autograd(const Tensor& a, const Tensor& x, Maybe initial,
                                            Maybe cu) {
  const std::vector<Tensor> out = Differentiable::apply(a, x, initial, cu);
  return {out[0], out[1]};
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  m.def(
      "linear_recurrence(Tensor a, Tensor x, Tensor? initial_state=None, Tensor? cu_seqlens=None)"
      " -> (Tensor y, Tensor state)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "linear_recurrence_backward(Tensor? grad_y, Tensor? grad_state, Tensor y, Tensor a, Tensor x,"
      " Tensor? initial_state, Tensor? cu_seqlens, bool[3] needs) -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  m.impl("linear_recurrence", &forward_cpu);
  m.impl("linear_recurrence_backward", &backward_cpu);
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  m.impl("linear_recurrence", &forward_meta);
  m.impl("linear_recurrence_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  m.impl("linear_recurrence", &forward_autograd);
  m.impl("linear_recurrence_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

std::tuple<Tensor, Tensor> linear_recurrence(const Tensor& a, const Tensor& x,
                                             const std::optional<Tensor>& initial_state,
                                             const std::optional<Tensor>& cu_seqlens) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::linear_recurrence", "")
      .typed<decltype(forward_cpu)>()
      .call(a, x, initial_state, cu_seqlens);
}

}  // namespace hopmix::ops

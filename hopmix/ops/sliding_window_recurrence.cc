// sliding_window_recurrence: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/scan/sliding_window_recurrence.h.
#include "hopmix/kernels/scan/sliding_window_recurrence.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/optional_tensors.h"

namespace hopmix::ops {
namespace {

using Needs = std::array<bool, 3>;

void check_state(Arguments& args, const char* name, const Tensor& state) {
  args.state(name, state, {"N", "parts", "E"});
  TORCH_CHECK_VALUE(state.sym_size(1) == 2, args.op(), ": ", name, " is ", state.sym_sizes(),
                    ", but must be [N, 2, E]");
}

Arguments check(const std::string& op, const Tensor& a, const Tensor& x, int64_t block,
                Maybe initial, int64_t start, Maybe cu) {
  Arguments args(op);
  args.tensor("a", a, {"B", "T", "E"});
  args.tensor("x", x, {"B", "T", "E"});
  TORCH_CHECK_VALUE(block >= 1, op, ": block is ", block, ", but must be at least 1");
  TORCH_CHECK_VALUE(start >= 0, op, ": start is ", start, ", but must be at least 0");
  args.cu_seqlens(cu);
  if (initial) check_state(args, "initial_state", *initial);
  return args;
}

Tensor new_state(const Arguments& args, const Tensor& a, Maybe cu) {
  const c10::SymInt sequences = cu ? cu->sym_size(0) - 1 : a.sym_size(0);
  return at::empty_symint({sequences, 2, a.sym_size(2)}, a.options().dtype(args.state_dtype()));
}

std::tuple<Tensor, Tensor> forward_meta(const Tensor& a, const Tensor& x, int64_t block,
                                        Maybe initial, int64_t start, Maybe cu) {
  const Arguments args = check("sliding_window_recurrence", a, x, block, initial, start, cu);
  return {args.empty({"B", "T", "E"}), new_state(args, a, cu)};
}

std::tuple<Tensor, Tensor> forward_cpu(const Tensor& a, const Tensor& x, int64_t block,
                                       Maybe initial, int64_t start, Maybe cu) {
  const Arguments args = check("sliding_window_recurrence", a, x, block, initial, start, cu);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const Tensors<2> flat = contiguous(Tensors<2>{a, x});
  const std::optional<Tensor> first = contiguous_if(initial);
  const Tensor y = args.empty({"B", "T", "E"});
  const Tensor state = new_state(args, a, cu);
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    kernels::sliding_window_recurrence<T>({read<T>(flat[0]), read<T>(flat[1]), read_state<T>(first),
                                           args.size("E"), block, start, sequences},
                                          write<T>(y), write<kernels::Accumulator<T>>(state));
  });
  return {y, state};
}

Arguments check_backward(Maybe grad_y, Maybe grad_state, const Tensor& y, const Tensor& a,
                         const Tensor& x, int64_t block, Maybe initial, int64_t start, Maybe cu) {
  Arguments args = check("sliding_window_recurrence_backward", a, x, block, initial, start, cu);
  args.tensor("y", y, {"B", "T", "E"});
  if (grad_y) args.tensor("grad_y", *grad_y, {"B", "T", "E"});
  if (grad_state) check_state(args, "grad_state", *grad_state);
  return args;
}

// Of a, x and the initial state; without one there is nothing to give back for it.
std::vector<Tensor> new_gradients(const Tensor& a, const Tensor& x, Maybe initial, Needs& needs) {
  needs[2] = needs[2] && initial.has_value();
  return gradients({a, x, initial.value_or(a)}, needs);
}

std::vector<Tensor> backward_meta(Maybe grad_y, Maybe grad_state, const Tensor& y, const Tensor& a,
                                  const Tensor& x, int64_t block, Maybe initial, int64_t start,
                                  Maybe cu, Needs needs) {
  check_backward(grad_y, grad_state, y, a, x, block, initial, start, cu);
  return new_gradients(a, x, initial, needs);
}

std::vector<Tensor> backward_cpu(Maybe grad_y, Maybe grad_state, const Tensor& y, const Tensor& a,
                                 const Tensor& x, int64_t block, Maybe initial, int64_t start,
                                 Maybe cu, Needs needs) {
  const Arguments args = check_backward(grad_y, grad_state, y, a, x, block, initial, start, cu);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const Tensors<3> flat = contiguous(Tensors<3>{a, x, y});
  const std::optional<Tensor> first = contiguous_if(initial), gy = contiguous_if(grad_y),
                              gs = contiguous_if(grad_state);
  const std::vector<Tensor> out = new_gradients(a, x, initial, needs);
  with_storage_type(a.scalar_type(), [&]<typename T>() {
    kernels::sliding_window_recurrence_backward<T>(
        {read<T>(flat[0]), read<T>(flat[1]), read_state<T>(first), args.size("E"), block, start,
         sequences},
        read<T>(flat[2]), read_if<T>(gy), read_state<T>(gs),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<kernels::Accumulator<T>>(needs[2], out[2])});
  });
  return out;
}

std::vector<Tensor> call_backward(Maybe grad_y, Maybe grad_state, const Tensor& y, const Tensor& a,
                                  const Tensor& x, int64_t block, Maybe initial, int64_t start,
                                  Maybe cu, Needs needs) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::sliding_window_recurrence_backward", "")
      .typed<decltype(backward_cpu)>()
      .call(grad_y, grad_state, y, a, x, block, initial, start, cu, needs);
}

class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  using Context = torch::autograd::AutogradContext;

  static std::vector<Tensor> forward(Context* ctx, const Tensor& a, const Tensor& x, int64_t block,
                                     Maybe initial, int64_t start, Maybe cu) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, state] = sliding_window_recurrence(a, x, block, initial, start, cu);
    ctx->set_materialize_grads(false);  // a loss on one output sends nothing for the other
    ctx->save_for_backward({y, a, x, initial.value_or(Tensor()), cu.value_or(Tensor())});
    ctx->saved_data["block"] = block;
    ctx->saved_data["start"] = start;
    return {y, state};
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    const std::vector<Tensor> saved = ctx->get_saved_variables();
    const auto maybe = defined_or_none;
    const bool initial = saved[3].defined();
    const Needs needs = {ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                         initial && ctx->needs_input_grad(2)};
    std::vector<Tensor> out =
        call_backward(maybe(grads[0]), maybe(grads[1]), saved[0], saved[1], saved[2],
                      ctx->saved_data["block"].toInt(), maybe(saved[3]),
                      ctx->saved_data["start"].toInt(), maybe(saved[4]), needs);
    for (size_t i = 0; i < needs.size(); ++i) {
      if (!needs[i]) out[i] = Tensor();
    }
    return {out[0], out[1], Tensor(), out[2], Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor> forward_autograd(const Tensor& a, const Tensor& x, int64_t block,
                                            Maybe initial, int64_t start, Maybe cu) {
  const std::vector<Tensor> out = Differentiable::apply(a, x, block, initial, start, cu);
  return {out[0], out[1]};
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  m.def(
      "sliding_window_recurrence(Tensor a, Tensor x, int block, Tensor? initial_state=None,"
      " int start=0, Tensor? cu_seqlens=None) -> (Tensor y, Tensor state)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "sliding_window_recurrence_backward(Tensor? grad_y, Tensor? grad_state, Tensor y, Tensor a,"
      " Tensor x, int block, Tensor? initial_state, int start, Tensor? cu_seqlens, bool[3] needs)"
      " -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  m.impl("sliding_window_recurrence", &forward_cpu);
  m.impl("sliding_window_recurrence_backward", &backward_cpu);
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  m.impl("sliding_window_recurrence", &forward_meta);
  m.impl("sliding_window_recurrence_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  m.impl("sliding_window_recurrence", &forward_autograd);
  m.impl("sliding_window_recurrence_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

std::tuple<Tensor, Tensor> sliding_window_recurrence(const Tensor& a, const Tensor& x,
                                                     int64_t block,
                                                     const std::optional<Tensor>& initial_state,
                                                     int64_t start,
                                                     const std::optional<Tensor>& cu_seqlens) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::sliding_window_recurrence", "")
      .typed<decltype(forward_cpu)>()
      .call(a, x, block, initial_state, start, cu_seqlens);
}

}  // namespace hopmix::ops

// selective_scan: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/scan/selective_scan.h. What the backward begins its pieces from is a third output of
// _selective_scan, which autograd calls instead.
#include "hopmix/kernels/scan/selective_scan.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/optional_tensors.h"

namespace hopmix::ops {
namespace {

using Needs = std::array<bool, 7>;
using Outputs = std::tuple<Tensor, Tensor>;
using KeptOutputs = std::tuple<Tensor, Tensor, Tensor>;

Arguments check(const std::string& op, const Tensor& u, const Tensor& delta, const Tensor& A,
                const Tensor& B, const Tensor& C, Maybe D, Maybe initial, Maybe cu) {
  Arguments args(op);
  args.tensor("u", u, {"B", "T", "E"});
  args.tensor("delta", delta, {"B", "T", "E"});
  args.state("A", A, {"E", "S"});
  TORCH_CHECK_VALUE(A.sym_size(1) >= 1, op, ": A is ", A.sym_sizes(),
                    ", but must be [E, S] with S at least 1");
  args.tensor("B", B, {"B", "T", "S"});
  args.tensor("C", C, {"B", "T", "S"});
  if (D) args.state("D", *D, {"E"});
  args.cu_seqlens(cu);
  if (initial) args.state("initial_state", *initial, {"N", "E", "S"});
  return args;
}

// [rows, S, E padded]: the states before each piece of every sequence.
std::vector<c10::SymInt> checkpoint_sizes(const Tensor& u, const Tensor& A, Maybe cu) {
  const c10::SymInt sequences = cu ? cu->sym_size(0) - 1 : u.sym_size(0);
  const c10::SymInt pad = kernels::kPad;
  return {kernels::scan_checkpoint_rows<c10::SymInt>(u.sym_size(0) * u.sym_size(1), sequences),
          A.sym_size(1), (u.sym_size(2) + pad - 1) / pad * pad};
}

// Contiguous inputs, as the kernel takes them.
struct Inputs {
  Tensors<5> tensors;
  std::optional<Tensor> D, initial;

  template <typename T>
  kernels::SelectiveScanInputs<T> as(const Arguments& args,
                                     const kernels::Sequences& sequences) const {
    const auto& [u, delta, A, B, C] = tensors;
    using Sum = kernels::Accumulator<T>;
    return {read<T>(u),      read<T>(delta),        read<Sum>(A),   read<T>(B),     read<T>(C),
            read_if<Sum>(D), read_if<Sum>(initial), args.size("E"), args.size("S"), sequences};
  }
};

Outputs scan(const Arguments& args, const Inputs& in, const kernels::Sequences& sequences,
             const Tensor& checkpoints) {
  const Tensor y = args.empty({"B", "T", "E"});
  const Tensor state = args.empty({"N", "E", "S"}, args.state_dtype());
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    using Sum = kernels::Accumulator<T>;
    kernels::selective_scan<T>(in.as<T>(args, sequences), write<T>(y), write<Sum>(state),
                               checkpoints.defined() ? write<Sum>(checkpoints) : nullptr);
  });
  return {y, state};
}

Outputs forward_meta(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                     const Tensor& C, Maybe D, Maybe initial, Maybe cu) {
  const Arguments args = check("selective_scan", u, delta, A, B, C, D, initial, cu);
  return {args.empty({"B", "T", "E"}), args.empty({"N", "E", "S"}, args.state_dtype())};
}

Outputs forward_cpu(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                    const Tensor& C, Maybe D, Maybe initial, Maybe cu) {
  const Arguments args = check("selective_scan", u, delta, A, B, C, D, initial, cu);
  const Inputs in{contiguous(Tensors<5>{u, delta, A, B, C}), contiguous_if(D),
                  contiguous_if(initial)};
  return scan(args, in, bind_sequences(args, cu), Tensor());
}

KeptOutputs kept_meta(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                      const Tensor& C, Maybe D, Maybe initial, Maybe cu) {
  const auto [y, state] = forward_meta(u, delta, A, B, C, D, initial, cu);
  return {y, state, at::empty_symint(checkpoint_sizes(u, A, cu), A.options())};
}

KeptOutputs kept_cpu(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                     const Tensor& C, Maybe D, Maybe initial, Maybe cu) {
  const Arguments args = check("selective_scan", u, delta, A, B, C, D, initial, cu);
  const Inputs in{contiguous(Tensors<5>{u, delta, A, B, C}), contiguous_if(D),
                  contiguous_if(initial)};
  // Short sequences leave rows out.
  const Tensor checkpoints = at::zeros_symint(checkpoint_sizes(u, A, cu), A.options());
  const auto [y, state] = scan(args, in, bind_sequences(args, cu), checkpoints);
  return {y, state, checkpoints};
}

Arguments check_backward(Maybe grad_y, Maybe grad_state, const Tensor& checkpoints, const Tensor& u,
                         const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                         Maybe D, Maybe initial, Maybe cu) {
  Arguments args = check("selective_scan_backward", u, delta, A, B, C, D, initial, cu);
  if (grad_y) args.tensor("grad_y", *grad_y, {"B", "T", "E"});
  if (grad_state) args.state("grad_state", *grad_state, {"N", "E", "S"});
  args.state("checkpoints", checkpoints, {"rows", "S", "padded E"});
  const std::vector<c10::SymInt> sizes = checkpoint_sizes(u, A, cu);
  TORCH_CHECK_VALUE(checkpoints.sym_sizes() == c10::SymIntArrayRef(sizes), args.op(),
                    ": checkpoints is ", checkpoints.sym_sizes(), ", but must be ",
                    c10::SymIntArrayRef(sizes), ", as _selective_scan gave it");
  return args;
}

std::vector<Tensor> new_gradients(const Tensor& u, const Tensor& delta, const Tensor& A,
                                  const Tensor& B, const Tensor& C, Maybe D, Maybe initial,
                                  Needs& needs) {
  needs[5] = needs[5] && D.has_value();
  needs[6] = needs[6] && initial.has_value();
  return gradients({u, delta, A, B, C, D.value_or(A), initial.value_or(A)}, needs);
}

std::vector<Tensor> backward_meta(Maybe grad_y, Maybe grad_state, const Tensor& checkpoints,
                                  const Tensor& u, const Tensor& delta, const Tensor& A,
                                  const Tensor& B, const Tensor& C, Maybe D, Maybe initial,
                                  Maybe cu, Needs needs) {
  check_backward(grad_y, grad_state, checkpoints, u, delta, A, B, C, D, initial, cu);
  return new_gradients(u, delta, A, B, C, D, initial, needs);
}

std::vector<Tensor> backward_cpu(Maybe grad_y, Maybe grad_state, const Tensor& checkpoints,
                                 const Tensor& u, const Tensor& delta, const Tensor& A,
                                 const Tensor& B, const Tensor& C, Maybe D, Maybe initial, Maybe cu,
                                 Needs needs) {
  const Arguments args =
      check_backward(grad_y, grad_state, checkpoints, u, delta, A, B, C, D, initial, cu);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const Inputs in{contiguous(Tensors<5>{u, delta, A, B, C}), contiguous_if(D),
                  contiguous_if(initial)};
  const std::optional<Tensor> gy = contiguous_if(grad_y), gs = contiguous_if(grad_state);
  const Tensor kept = checkpoints.contiguous();
  const std::vector<Tensor> out = new_gradients(u, delta, A, B, C, D, initial, needs);
  with_storage_type(u.scalar_type(), [&]<typename T>() {
    using Sum = kernels::Accumulator<T>;
    kernels::selective_scan_backward<T>(
        in.as<T>(args, sequences), read<Sum>(kept), read_if<T>(gy), read_if<Sum>(gs),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<Sum>(needs[2], out[2]), write_if<T>(needs[3], out[3]),
         write_if<T>(needs[4], out[4]), write_if<Sum>(needs[5], out[5]),
         write_if<Sum>(needs[6], out[6])});
  });
  return out;
}

class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  using Context = torch::autograd::AutogradContext;

  static std::vector<Tensor> forward(Context* ctx, const Tensor& u, const Tensor& delta,
                                     const Tensor& A, const Tensor& B, const Tensor& C, Maybe D,
                                     Maybe initial, Maybe cu) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, state, checkpoints] = c10::Dispatcher::singleton()
                                             .findSchemaOrThrow("hopmix::_selective_scan", "")
                                             .typed<decltype(kept_cpu)>()
                                             .call(u, delta, A, B, C, D, initial, cu);
    ctx->set_materialize_grads(false);  // a loss on one output sends nothing for the other
    ctx->save_for_backward({checkpoints, u, delta, A, B, C, D.value_or(Tensor()),
                            initial.value_or(Tensor()), cu.value_or(Tensor())});
    return {y, state};
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    const std::vector<Tensor> s = ctx->get_saved_variables();
    Needs needs = {};
    size_t given = 0;  // autograd counts the tensors there are
    for (size_t i = 0; i < needs.size(); ++i) {
      if (s[i + 1].defined()) needs[i] = ctx->needs_input_grad(given++);
    }
    std::vector<Tensor> out = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("hopmix::selective_scan_backward", "")
                                  .typed<decltype(backward_cpu)>()
                                  .call(defined_or_none(grads[0]), defined_or_none(grads[1]), s[0],
                                        s[1], s[2], s[3], s[4], s[5], defined_or_none(s[6]),
                                        defined_or_none(s[7]), defined_or_none(s[8]), needs);
    for (size_t i = 0; i < needs.size(); ++i) {
      if (!needs[i]) out[i] = Tensor();
    }
    out.resize(8);  // nothing for cu_seqlens
    return out;
  }
};

Outputs forward_autograd(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                         const Tensor& C, Maybe D, Maybe initial, Maybe cu) {
  // Without a backward nothing has to be kept for it.
  const auto wants = [](Maybe t) { return t && t->requires_grad(); };
  const bool any = u.requires_grad() || delta.requires_grad() || A.requires_grad() ||
                   B.requires_grad() || C.requires_grad() || wants(D) || wants(initial);
  if (!any || !at::GradMode::is_enabled()) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return selective_scan(u, delta, A, B, C, D, initial, cu);
  }
  const std::vector<Tensor> out = Differentiable::apply(u, delta, A, B, C, D, initial, cu);
  return {out[0], out[1]};
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  const std::string inputs = "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, ";
  const std::string required = inputs + "Tensor? D, Tensor? initial_state, Tensor? cu_seqlens";
  for (const std::string& schema :
       {"selective_scan(" + inputs +
            "Tensor? D=None, Tensor? initial_state=None, Tensor? cu_seqlens=None)"
            " -> (Tensor y, Tensor state)",
        "_selective_scan(" + required + ") -> (Tensor y, Tensor state, Tensor checkpoints)",
        "selective_scan_backward(Tensor? grad_y, Tensor? grad_state, Tensor checkpoints, " +
            required + ", bool[7] needs) -> Tensor[]"}) {
    m.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  }
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  m.impl("selective_scan", &forward_cpu);
  m.impl("_selective_scan", &kept_cpu);
  m.impl("selective_scan_backward", &backward_cpu);
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  m.impl("selective_scan", &forward_meta);
  m.impl("_selective_scan", &kept_meta);
  m.impl("selective_scan_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  m.impl("selective_scan", &forward_autograd);
  for (const char* inner : {"_selective_scan", "selective_scan_backward"}) {
    m.impl(inner, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace

Outputs selective_scan(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                       const Tensor& C, const std::optional<Tensor>& D,
                       const std::optional<Tensor>& initial_state,
                       const std::optional<Tensor>& cu_seqlens) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::selective_scan", "")
      .typed<decltype(forward_cpu)>()
      .call(u, delta, A, B, C, D, initial_state, cu_seqlens);
}

}  // namespace hopmix::ops

// head_loss: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/maps/head_loss.h, which makes the gradients with the loss; what is left for the backward
// is a factor.
#include "hopmix/kernels/maps/head_loss.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/engines.h"
#include "hopmix/ops/operator_kernels.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/optional_tensors.h"

namespace hopmix::ops {
namespace {

using Needs = std::array<bool, 3>;
using Outputs = std::tuple<Tensor, Tensor, Tensor>;  // loss, losses, guesses

Arguments check_map(const std::string& op, const Tensor& x, const Tensor& weight, Maybe bias) {
  Arguments args(op);
  args.tensor("x", x, {"N", "D"});
  args.tensor("weight", weight, {"V", "D"});
  if (bias) args.tensor("bias", *bias, {"V"});
  return args;
}

Arguments check(const Tensor& x, const Tensor& weight, Maybe bias, const Tensor& targets,
                Maybe row_weights) {
  Arguments args = check_map("head_loss", x, weight, bias);
  TORCH_CHECK_VALUE(targets.scalar_type() == at::kLong, "head_loss: targets is ",
                    targets.scalar_type(), ", but must be Long [N]");
  TORCH_CHECK_VALUE(targets.dim() == 1 && targets.sym_size(0) == x.sym_size(0),
                    "head_loss: targets is ", targets.sym_sizes(),
                    ", but must be [N] with N = ", x.sym_size(0), " as in x");
  TORCH_CHECK_VALUE(targets.device() == x.device(), "head_loss: targets is on ", targets.device(),
                    ", but must be on ", x.device(), " like x");
  if (row_weights) args.state("row_weights", *row_weights, {"N"});
  return args;
}

Outputs new_outputs(const Arguments& args) {
  return {args.empty({}, args.state_dtype()), args.empty({"N"}, args.state_dtype()),
          args.empty({"N"}, at::kLong)};
}

// The outputs, then the gradients of the loss.
std::vector<Tensor> all_outputs(const Arguments& args, const Tensor& x, const Tensor& weight,
                                Maybe bias, Needs needs) {
  const auto [loss, losses, guesses] = new_outputs(args);
  std::vector<Tensor> all = {loss, losses, guesses};
  needs[2] = needs[2] && bias;
  for (Tensor& t : gradients({x, weight, bias ? *bias : weight}, needs)) {
    all.push_back(std::move(t));
  }
  return all;
}

void check_targets(const Tensor& targets, int64_t vocabulary) {
  const int64_t* target = read<int64_t>(targets);
  for (int64_t i = 0; i < targets.numel(); ++i) {
    TORCH_CHECK_VALUE(target[i] >= 0 && target[i] < vocabulary, "head_loss: targets[", i, "] is ",
                      target[i], ", but must be from 0 to V - 1 = ", vocabulary - 1);
  }
}

std::vector<Tensor> inner_meta(const Tensor& x, const Tensor& weight, Maybe bias,
                               const Tensor& targets, Maybe row_weights, Needs needs) {
  return all_outputs(check(x, weight, bias, targets, row_weights), x, weight, bias, needs);
}

std::vector<Tensor> inner_cpu(const Tensor& x, const Tensor& weight, Maybe bias,
                              const Tensor& targets, Maybe row_weights, Needs needs) {
  const Arguments args = check(x, weight, bias, targets, row_weights);
  const Tensors<3> flat = contiguous(Tensors<3>{x, weight, targets});
  const std::optional<Tensor> flat_bias = contiguous_if(bias), weights = contiguous_if(row_weights);
  check_targets(flat[2], args.size("V"));
  std::vector<Tensor> out = all_outputs(args, x, weight, bias, needs);
  ensure_gemm_engine();
  with_storage_type(args.dtype(), [&]<typename T>() {
    using A = kernels::Accumulator<T>;
    const kernels::HeadLossInputs<T> in{
        read<T>(flat[0]),       read<T>(flat[1]), read_if<T>(flat_bias), read<int64_t>(flat[2]),
        read_state<T>(weights), args.size("N"),   args.size("D"),        args.size("V")};
    *write<A>(out[0]) =
        kernels::head_loss<T>(in, write<A>(out[1]), write<int64_t>(out[2]),
                              {write_if<T>(needs[0], out[3]), write_if<T>(needs[1], out[4]),
                               write_if<T>(needs[2] && bias, out[5])});
  });
  return out;
}

Outputs forward_meta(const Tensor& x, const Tensor& weight, Maybe bias, const Tensor& targets,
                     Maybe row_weights) {
  return new_outputs(check(x, weight, bias, targets, row_weights));
}

Outputs forward_cpu(const Tensor& x, const Tensor& weight, Maybe bias, const Tensor& targets,
                    Maybe row_weights) {
  const std::vector<Tensor> out = inner_cpu(x, weight, bias, targets, row_weights, {});
  return {out[0], out[1], out[2]};
}

Arguments check_backward(const Tensor& grad_loss, at::TensorList kept, const Tensor& x,
                         const Tensor& weight, Maybe bias) {
  Arguments args = check_map("head_loss_backward", x, weight, bias);
  args.state("grad_loss", grad_loss, {});
  args.kept(kept, 3);
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_loss, at::TensorList kept, const Tensor& x,
                                  const Tensor& weight, Maybe bias) {
  check_backward(grad_loss, kept, x, weight, bias);
  std::vector<Tensor> out;
  for (const Tensor& t : kept) out.push_back(at::empty_like(t));
  return out;
}

std::vector<Tensor> backward_cpu(const Tensor& grad_loss, at::TensorList kept, const Tensor& x,
                                 const Tensor& weight, Maybe bias) {
  check_backward(grad_loss, kept, x, weight, bias);
  std::vector<Tensor> out;
  for (const Tensor& t : kept) out.push_back(at::mul(t, grad_loss));
  return out;
}

// A factor of 1, as the last loss of all has, needs no pass over the gradients. They are given
// away, so it must be for the last time.
bool is_one(const Tensor& grad_loss) {
  return !c10::GradMode::is_enabled() && grad_loss.is_cpu() &&
         !torch::autograd::get_current_graph_task_keep_graph() &&
         !at::isTensorSubclassLike(grad_loss) && grad_loss.item<double>() == 1;
}

class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  using Context = torch::autograd::AutogradContext;

  static std::vector<Tensor> forward(Context* ctx, const Tensor& x, const Tensor& weight,
                                     Maybe bias, const Tensor& targets, Maybe row_weights) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const Needs needs = {x.requires_grad(), weight.requires_grad(), bias && bias->requires_grad()};
    const std::vector<Tensor> all = c10::Dispatcher::singleton()
                                        .findSchemaOrThrow("hopmix::_head_loss", "")
                                        .typed<decltype(inner_cpu)>()
                                        .call(x, weight, bias, targets, row_weights, needs);
    ctx->mark_non_differentiable({all[1], all[2]});
    ctx->save_for_backward({all[3], all[4], all[5], x, weight, bias.value_or(Tensor())});
    return {all[0], all[1], all[2]};
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    std::vector<Tensor> out = ctx->get_saved_variables();
    if (!is_one(grads[0])) {
      const std::vector<Tensor> scaled = c10::Dispatcher::singleton()
                                             .findSchemaOrThrow("hopmix::head_loss_backward", "")
                                             .typed<decltype(backward_cpu)>()
                                             .call(grads[0], at::TensorList(out).slice(0, 3),
                                                   out[3], out[4], defined_or_none(out[5]));
      std::copy(scaled.begin(), scaled.end(), out.begin());
    }
    for (size_t i = 0; i < 3; ++i) {
      if (!ctx->needs_input_grad(i)) out[i] = Tensor();
    }
    std::fill(out.begin() + 3, out.end(), Tensor());
    out.resize(5);  // nothing for targets and row_weights
    return out;
  }
};

Outputs forward_autograd(const Tensor& x, const Tensor& weight, Maybe bias, const Tensor& targets,
                         Maybe row_weights) {
  TORCH_CHECK_VALUE(!row_weights || !differentiates(*row_weights),
                    "head_loss: row_weights requires a gradient, but has none");
  if (differentiates(x) || differentiates(weight) || (bias && differentiates(*bias))) {
    const auto out = Differentiable::apply(x, weight, bias, targets, row_weights);
    return {out[0], out[1], out[2]};
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return head_loss(x, weight, bias, targets, row_weights);
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  m.def(
      "head_loss(Tensor x, Tensor weight, Tensor? bias, Tensor targets, Tensor? row_weights=None)"
      " -> (Tensor loss, Tensor losses, Tensor guesses)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_head_loss(Tensor x, Tensor weight, Tensor? bias, Tensor targets, Tensor? row_weights,"
      " bool[3] needs) -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "head_loss_backward(Tensor grad_loss, Tensor[] kept, Tensor x, Tensor weight, Tensor? bias)"
      " -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  m.impl("head_loss", &forward_cpu);
  m.impl("_head_loss", &inner_cpu);
  m.impl("head_loss_backward", &backward_cpu);
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  m.impl("head_loss", &forward_meta);
  m.impl("_head_loss", &inner_meta);
  m.impl("head_loss_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  m.impl("head_loss", &forward_autograd);
  m.impl("_head_loss", torch::autograd::autogradNotImplementedFallback());
  m.impl("head_loss_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

Outputs head_loss(const Tensor& x, const Tensor& weight, Maybe bias, const Tensor& targets,
                  Maybe row_weights) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::head_loss", "")
      .typed<decltype(forward_cpu)>()
      .call(x, weight, bias, targets, row_weights);
}

}  // namespace hopmix::ops

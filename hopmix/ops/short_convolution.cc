// short_convolution: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/scan/short_convolution.h.
#include "hopmix/kernels/scan/short_convolution.h"

#include <ATen/core/dispatch/Dispatcher.h>
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

Arguments check(const std::string& op, const Tensor& x, const Tensor& weight, Maybe bias,
                Maybe cu) {
  Arguments args(op);
  args.tensor("x", x, {"B", "T", "E"});
  args.tensor("weight", weight, {"E", "W"});
  if (bias) args.tensor("bias", *bias, {"E"});
  args.cu_seqlens(cu);
  TORCH_CHECK_VALUE(weight.size(1) >= 1 && weight.size(1) <= kernels::kMostTaps, op, ": weight is ",
                    weight.sizes(), ", but must be [E, W] with W from 1 to ", kernels::kMostTaps);
  return args;
}

template <typename T>
kernels::ShortConvolutionInputs<T> kernel_inputs(const Arguments& args, const Tensors<2>& flat,
                                                 Maybe bias, bool silu,
                                                 const kernels::Sequences& sequences) {
  return {read<T>(flat[0]), read<T>(flat[1]), read_if<T>(bias),
          args.size("E"),   args.size("W"),   silu,
          sequences};
}

Tensor forward_meta(const Tensor& x, const Tensor& weight, Maybe bias, bool, Maybe cu) {
  return check("short_convolution", x, weight, bias, cu).empty({"B", "T", "E"});
}

Tensor forward_cpu(const Tensor& x, const Tensor& weight, Maybe bias, bool silu, Maybe cu) {
  const Arguments args = check("short_convolution", x, weight, bias, cu);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const Tensors<2> flat = contiguous(Tensors<2>{x, weight});
  const std::optional<Tensor> flat_bias = contiguous_if(bias);
  const Tensor y = args.empty({"B", "T", "E"});
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    kernels::short_convolution(kernel_inputs<T>(args, flat, flat_bias, silu, sequences),
                               write<T>(y));
  });
  return y;
}

Arguments check_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, Maybe bias,
                         Maybe cu) {
  Arguments args = check("short_convolution_backward", x, weight, bias, cu);
  args.tensor("grad_y", grad_y, {"B", "T", "E"});
  return args;
}

// Of x, weight and bias; without a bias there is nothing to give back for it.
std::vector<Tensor> new_gradients(const Tensor& x, const Tensor& weight, Maybe bias, Needs& needs) {
  needs[2] = needs[2] && bias.has_value();
  return gradients({x, weight, bias.value_or(weight)}, needs);
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                  Maybe bias, bool, Maybe cu, Needs needs) {
  check_backward(grad_y, x, weight, bias, cu);
  return new_gradients(x, weight, bias, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                 Maybe bias, bool silu, Maybe cu, Needs needs) {
  const Arguments args = check_backward(grad_y, x, weight, bias, cu);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const Tensors<2> flat = contiguous(Tensors<2>{x, weight});
  const std::optional<Tensor> flat_bias = contiguous_if(bias);
  const Tensor flat_grad = grad_y.contiguous();
  const std::vector<Tensor> out = new_gradients(x, weight, bias, needs);
  with_storage_type(x.scalar_type(), [&]<typename T>() {
    kernels::short_convolution_backward<T>(
        kernel_inputs<T>(args, flat, flat_bias, silu, sequences), read<T>(flat_grad),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<T>(needs[2], out[2])});
  });
  return out;
}

class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  using Context = torch::autograd::AutogradContext;

  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& weight, Maybe bias, bool silu,
                        Maybe cu) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, weight, bias.value_or(Tensor()), cu.value_or(Tensor())});
    ctx->saved_data["silu"] = silu;
    return short_convolution(x, weight, bias, silu, cu);
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    const std::vector<Tensor> saved = ctx->get_saved_variables();
    const bool bias = saved[2].defined();
    const Needs needs = {ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                         bias && ctx->needs_input_grad(2)};
    std::vector<Tensor> out =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("hopmix::short_convolution_backward", "")
            .typed<decltype(backward_cpu)>()
            .call(grads[0], saved[0], saved[1], defined_or_none(saved[2]),
                  ctx->saved_data["silu"].toBool(), defined_or_none(saved[3]), needs);
    for (size_t i = 0; i < needs.size(); ++i) {
      if (!needs[i]) out[i] = Tensor();
    }
    out.resize(5);  // nothing for silu and cu_seqlens
    return out;
  }
};

Tensor forward_autograd(const Tensor& x, const Tensor& weight, Maybe bias, bool silu, Maybe cu) {
  return Differentiable::apply(x, weight, bias, silu, cu);
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  m.def(
      "short_convolution(Tensor x, Tensor weight, Tensor? bias=None, bool silu=False,"
      " Tensor? cu_seqlens=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "short_convolution_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor? bias, bool silu,"
      " Tensor? cu_seqlens, bool[3] needs) -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  m.impl("short_convolution", &forward_cpu);
  m.impl("short_convolution_backward", &backward_cpu);
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  m.impl("short_convolution", &forward_meta);
  m.impl("short_convolution_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  m.impl("short_convolution", &forward_autograd);
  m.impl("short_convolution_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

Tensor short_convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                         bool silu, const std::optional<Tensor>& cu_seqlens) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::short_convolution", "")
      .typed<decltype(forward_cpu)>()
      .call(x, weight, bias, silu, cu_seqlens);
}

}  // namespace hopmix::ops

// rms_norm: checks, CPU and meta kernels, autograd. The mathematics is in kernels/maps/rms_norm.h.
#include "hopmix/kernels/maps/rms_norm.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {
namespace {

using Needs = std::array<bool, 2>;

Arguments check(const std::string& op, const Tensor& x, const Tensor& weight, double eps) {
  Arguments args(op);
  args.tensor("x", x, {"B", "T", "E"});
  args.tensor("weight", weight, {"E"});
  TORCH_CHECK_VALUE(std::isfinite(eps) && eps >= 0, op, ": eps is ", eps,
                    ", but must be finite and at least 0");
  return args;
}

template <typename T>
kernels::RmsNormInputs<T> kernel_inputs(const Arguments& args, const Tensor& x,
                                        const Tensor& weight, double eps) {
  return {read<T>(x), read<T>(weight), args.size("B") * args.size("T"), args.size("E"), eps};
}

Tensor forward_meta(const Tensor& x, const Tensor& weight, double eps) {
  return check("rms_norm", x, weight, eps).empty({"B", "T", "E"});
}

Tensor forward_cpu(const Tensor& x, const Tensor& weight, double eps) {
  const Arguments args = check("rms_norm", x, weight, eps);
  const Tensors<2> flat = contiguous(Tensors<2>{x, weight});
  const Tensor y = args.empty({"B", "T", "E"});
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    kernels::rms_norm(kernel_inputs<T>(args, flat[0], flat[1], eps), write<T>(y));
  });
  return y;
}

Arguments check_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, double eps) {
  Arguments args = check("rms_norm_backward", x, weight, eps);
  args.tensor("grad_y", grad_y, {"B", "T", "E"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                  double eps, Needs needs) {
  check_backward(grad_y, x, weight, eps);
  return gradients({x, weight}, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                 double eps, Needs needs) {
  const Arguments args = check_backward(grad_y, x, weight, eps);
  const Tensors<3> flat = contiguous(Tensors<3>{grad_y, x, weight});
  const std::vector<Tensor> out = gradients({x, weight}, needs);
  with_storage_type(x.scalar_type(), [&]<typename T>() {
    kernels::rms_norm_backward<T>(kernel_inputs<T>(args, flat[1], flat[2], eps), read<T>(flat[0]),
                                  {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1])});
  });
  return out;
}

class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  using Context = torch::autograd::AutogradContext;

  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& weight, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, weight});
    ctx->saved_data["eps"] = eps;
    return rms_norm(x, weight, eps);
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    const std::vector<Tensor> saved = ctx->get_saved_variables();
    const Needs needs = {ctx->needs_input_grad(0), ctx->needs_input_grad(1)};
    std::vector<Tensor> out =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("hopmix::rms_norm_backward", "")
            .typed<decltype(backward_cpu)>()
            .call(grads[0], saved[0], saved[1], ctx->saved_data["eps"].toDouble(), needs);
    for (size_t i = 0; i < needs.size(); ++i) {
      if (!needs[i]) out[i] = Tensor();
    }
    out.resize(3);  // nothing for eps
    return out;
  }
};

Tensor forward_autograd(const Tensor& x, const Tensor& weight, double eps) {
  return Differentiable::apply(x, weight, eps);
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "rms_norm_backward(Tensor grad_y, Tensor x, Tensor weight, float eps, bool[2] needs)"
      " -> Tensor[]",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  m.impl("rms_norm", &forward_cpu);
  m.impl("rms_norm_backward", &backward_cpu);
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  m.impl("rms_norm", &forward_meta);
  m.impl("rms_norm_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  m.impl("rms_norm", &forward_autograd);
  m.impl("rms_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::rms_norm", "")
      .typed<decltype(forward_cpu)>()
      .call(x, weight, eps);
}

}  // namespace hopmix::ops

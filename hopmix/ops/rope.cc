// rope: checks, CPU and meta kernels, autograd. The mathematics is in kernels/maps/rope.h.
#include "hopmix/kernels/maps/rope.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {
namespace {

Arguments check(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  Arguments args("rope");
  args.tensor("x", x, {"B", "T", "H", "D"});
  args.tensor("cos", cos, {"1 or B", "T", "D / 2"});
  args.tensor("sin", sin, {"1 or B", "T", "D / 2"});
  TORCH_CHECK_VALUE(x.sym_size(3) == 2 * cos.sym_size(2), "rope: cos is ", cos.sym_sizes(),
                    ", but must be [1 or B, T, D / 2] with D = ", x.sym_size(3), " as in x");
  TORCH_CHECK_VALUE(cos.sym_size(0) == 1 || cos.sym_size(0) == x.sym_size(0), "rope: cos is ",
                    cos.sym_sizes(), ", but must be [1 or B, T, D / 2] with B = ", x.sym_size(0),
                    " as in x");
  return args;
}

Tensor turn_meta(const Tensor& x, const Tensor& cos, const Tensor& sin, bool) {
  return check(x, cos, sin).empty({"B", "T", "H", "D"});
}

Tensor turn_cpu(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  const Tensor y = turn_meta(x, cos, sin, back);
  const Tensors<3> in = contiguous(Tensors<3>{x, cos, sin});
  with_storage_type(x.scalar_type(), [&]<typename T>() {
    kernels::rope<T>({read<T>(in[0]), read<T>(in[1]), read<T>(in[2]), x.size(0), x.size(1),
                      x.size(2), cos.size(2), cos.size(0) > 1},
                     back, write<T>(y));
  });
  return y;
}

const auto& turn() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hopmix::_rope", "")
                             .typed<decltype(turn_cpu)>();
  return op;
}

// A turn is undone by the reverse one, so its gradient is another: any number of derivatives.
class Turn : public torch::autograd::Function<Turn> {
 public:
  using Context = torch::autograd::AutogradContext;

  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin,
                        bool back) {
    TORCH_CHECK_VALUE(!cos.requires_grad() && !sin.requires_grad(),
                      "rope: ", cos.requires_grad() ? "cos" : "sin",
                      " requires a gradient, but has none: angles are constants");
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["back"] = back;
    return turn().call(x, cos, sin, back);
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    const std::vector<Tensor> saved = ctx->get_saved_variables();
    return {turn().call(grads[0], saved[0], saved[1], !ctx->saved_data["back"].toBool()), Tensor(),
            Tensor(), Tensor()};
  }
};

Tensor turn_autograd(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  return Turn::apply(x, cos, sin, back);
}

Tensor rope_composite(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return turn().call(x, cos, sin, /*back=*/false);
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  m.def("rope(Tensor x, Tensor cos, Tensor sin) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("_rope(Tensor x, Tensor cos, Tensor sin, bool back) -> Tensor",
        {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(hopmix, CompositeImplicitAutograd, m) { m.impl("rope", &rope_composite); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { m.impl("_rope", &turn_cpu); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { m.impl("_rope", &turn_meta); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { m.impl("_rope", &turn_autograd); }

}  // namespace

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return rope_composite(x, cos, sin);
}

}  // namespace hopmix::ops

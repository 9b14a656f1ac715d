// linear, linear_parts, mlp: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/maps/linear.h and mlp.h.
#include "hopmix/kernels/maps/linear.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "hopmix/kernels/maps/mlp.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/engines.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {
namespace {

using Widths = at::IntArrayRef;
using List = std::vector<Tensor>;
using Maybe = const std::optional<Tensor>&;

template <typename Signature>
auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// x [..., K] as the first tensor of a call.
void check_rows(Arguments& args, const Tensor& x) {
  switch (x.dim()) {
    case 1:
      return args.tensor("x", x, {"K"});
    case 2:
      return args.tensor("x", x, {"B", "K"});
    case 3:
      return args.tensor("x", x, {"B", "T", "K"});
    default:
      return args.tensor("x", x, {"B", "T", "H", "K"});
  }
}

std::vector<c10::SymInt> with_last(const Tensor& x, const c10::SymInt& last) {
  std::vector<c10::SymInt> sizes = x.sym_sizes().vec();
  sizes.back() = last;
  return sizes;
}

// The number of rows of x [..., K].
int64_t rows_of(const Tensor& x) {
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return rows;
}

void check_last(const std::string& op, const char* name, const Tensor& t, const char* dims,
                const Tensor& like, const c10::SymInt& last, const char* as) {
  bool fits = t.dim() == like.dim();
  for (int64_t d = 0; fits && d + 1 < t.dim(); ++d) fits = t.sym_size(d) == like.sym_size(d);
  TORCH_CHECK_VALUE(fits && t.sym_size(-1) == last, op, ": ", name, " is ", t.sym_sizes(),
                    ", but must be ", dims, " with ", as, " = ", last);
  TORCH_CHECK_VALUE(t.scalar_type() == like.scalar_type(), op, ": ", name, " is ", t.scalar_type(),
                    ", but must be ", like.scalar_type(), " as x");
}

// ---- linear_parts

void check_parts(const std::string& op, const Tensor& x, at::TensorList weights, Widths widths) {
  Arguments args(op);
  check_rows(args, x);
  c10::SymInt rows = 0;
  int64_t total = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::string name = "weights[" + std::to_string(i) + "]";
    const std::string dim = "N" + std::to_string(i);
    args.tensor(name.c_str(), weights[i], {dim.c_str(), "K"});
    rows += weights[i].sym_size(0);
  }
  for (size_t i = 0; i < widths.size(); ++i) {
    TORCH_CHECK_VALUE(widths[i] >= 0, op, ": widths[", i, "] is ", widths[i],
                      ", but must be at least 0");
    total += widths[i];
  }
  TORCH_CHECK_VALUE(rows == total, op, ": widths add up to ", total,
                    ", but must to the rows of the weights, ", rows);
  // A part lies in one weight.
  c10::SymInt end = 0;
  size_t part = 0;
  int64_t done = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    end += weights[i].sym_size(0);
    while (part < widths.size() && end >= done + widths[part]) done += widths[part++];
    TORCH_CHECK_VALUE(end == done, op, ": widths[", part, "] is ", widths[part],
                      ", but must end with the rows of weights[", i, "], ", end - done,
                      " from there");
  }
}

List parts_meta(const Tensor& x, at::TensorList weights, Widths widths) {
  check_parts("linear_parts", x, weights, widths);
  List out;
  for (const int64_t width : widths) {
    out.push_back(at::empty_symint(with_last(x, width), x.options()));
  }
  return out;
}

// Calls f(part, weight, first row of the weight) for each part.
template <typename F>
void for_parts(at::TensorList weights, Widths widths, const F& f) {
  size_t weight = 0;
  int64_t row = 0;
  for (size_t part = 0; part < widths.size(); ++part) {
    while (weight + 1 < weights.size() && row == weights[weight].size(0)) ++weight, row = 0;
    f(part, weight, row);
    row += widths[part];
  }
}

List contiguous_list(at::TensorList list) {
  List out;
  for (const Tensor& t : list) out.push_back(t.contiguous());
  return out;
}

List parts_cpu(const Tensor& x, at::TensorList weights, Widths widths) {
  List out = parts_meta(x, weights, widths);
  ensure_gemm_engine();
  const Tensor rows = x.contiguous();
  const List flat_weights = contiguous_list(weights);
  const int64_t inputs = x.size(-1);
  with_storage_type(x.scalar_type(), [&]<typename T>() {
    std::vector<kernels::LinearMap<T>> maps;
    for_parts(weights, widths, [&](size_t part, size_t weight, int64_t row) {
      maps.push_back({read<T>(flat_weights[weight]) + row * inputs, nullptr, widths[part],
                      write<T>(out[part])});
    });
    kernels::linear_forward<T>({read<T>(rows), rows_of(x), inputs}, maps);
  });
  return out;
}

// The gradients of x and of each weight.
List parts_backward_meta(at::TensorList grads, const Tensor& x, at::TensorList weights,
                         Widths widths, bool needs_x, bool needs_weights) {
  const std::string op = "linear_parts_backward";
  check_parts(op, x, weights, widths);
  TORCH_CHECK_VALUE(grads.size() == widths.size(), op, ": grads are ", grads.size(),
                    ", but must be one for each of the ", widths.size(), " widths");
  for (size_t i = 0; i < grads.size(); ++i) {
    check_last(op, ("grads[" + std::to_string(i) + "]").c_str(), grads[i], "[..., N]", x, widths[i],
               "N");
  }
  List inputs = {x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  List out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool needs = i == 0 ? needs_x : needs_weights;
    out.push_back(needs ? at::empty_symint(inputs[i].sym_sizes(), inputs[i].options())
                        : at::empty({0}, inputs[i].options()));
  }
  return out;
}

List parts_backward_cpu(at::TensorList grads, const Tensor& x, at::TensorList weights,
                        Widths widths, bool needs_x, bool needs_weights) {
  List out = parts_backward_meta(grads, x, weights, widths, needs_x, needs_weights);
  ensure_gemm_engine();
  const Tensor rows = x.contiguous();
  const List flat_weights = contiguous_list(weights), flat_grads = contiguous_list(grads);
  const int64_t inputs = x.size(-1);
  with_storage_type(x.scalar_type(), [&]<typename T>() {
    std::vector<kernels::LinearMapGradient<T>> maps;
    for_parts(weights, widths, [&](size_t part, size_t weight, int64_t row) {
      T* dweight = needs_weights ? write<T>(out[weight + 1]) + row * inputs : nullptr;
      maps.push_back({read<T>(flat_weights[weight]) + row * inputs, widths[part],
                      read<T>(flat_grads[part]), dweight, nullptr});
    });
    kernels::linear_backward<T>({read<T>(rows), rows_of(x), inputs}, maps,
                                write_if<T>(needs_x, out[0]));
  });
  return out;
}

class Parts : public torch::autograd::Function<Parts> {
 public:
  using Context = torch::autograd::AutogradContext;

  static List forward(Context* ctx, const Tensor& x, at::TensorList weights, Widths widths) {
    const at::AutoDispatchBelowADInplaceOrView below;
    List saved = {x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["widths"] = widths.vec();
    return ops::linear_parts(x, weights, widths);
  }

  static List backward(Context* ctx, const List& grads) {
    const List saved = ctx->get_saved_variables();
    const std::vector<int64_t> widths = ctx->saved_data["widths"].toIntVector();
    const bool needs_x = ctx->needs_input_grad(0);
    bool needs_weights = false;
    for (size_t i = 1; i < saved.size(); ++i) needs_weights |= ctx->needs_input_grad(i);
    List out =
        find<decltype(parts_backward_cpu)>("hopmix::linear_parts_backward")
            .call(grads, saved[0], at::TensorList(saved).slice(1), widths, needs_x, needs_weights);
    for (size_t i = 0; i < saved.size(); ++i) {
      if (!ctx->needs_input_grad(i)) out[i] = Tensor();
    }
    out.emplace_back();  // nothing for the widths
    return out;
  }
};

// ---- linear

void check_linear(const std::string& op, const Tensor& x, const Tensor& weight, Maybe bias) {
  Arguments args(op);
  check_rows(args, x);
  args.tensor("weight", weight, {"N", "K"});
  if (bias) args.tensor("bias", *bias, {"N"});
}

Tensor linear_meta(const Tensor& x, const Tensor& weight, Maybe bias) {
  check_linear("linear", x, weight, bias);
  return at::empty_symint(with_last(x, weight.sym_size(0)), x.options());
}

Tensor linear_cpu(const Tensor& x, const Tensor& weight, Maybe bias) {
  const Tensor y = linear_meta(x, weight, bias);
  ensure_gemm_engine();
  const Tensor rows = x.contiguous(), w = weight.contiguous();
  const Tensor b = bias ? bias->contiguous() : Tensor();
  with_storage_type(x.scalar_type(), [&]<typename T>() {
    kernels::linear_forward<T>(
        {read<T>(rows), rows_of(x), x.size(-1)},
        {{read<T>(w), bias ? read<T>(b) : nullptr, weight.size(0), write<T>(y)}});
  });
  return y;
}

using Needs = std::array<bool, 3>;

List linear_backward_meta(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                          Needs needs) {
  const std::string op = "linear_backward";
  check_linear(op, x, weight, {});
  check_last(op, "grad_y", grad_y, "[..., N]", x, weight.sym_size(0), "N");
  const auto memory = [&](bool needed, c10::SymIntArrayRef sizes) {
    return needed ? at::empty_symint(sizes, x.options()) : at::empty({0}, x.options());
  };
  return {memory(needs[0], x.sym_sizes()), memory(needs[1], weight.sym_sizes()),
          memory(needs[2], weight.sym_sizes().slice(0, 1))};
}

List linear_backward_cpu(const Tensor& grad_y, const Tensor& x, const Tensor& weight, Needs needs) {
  List out = linear_backward_meta(grad_y, x, weight, needs);
  ensure_gemm_engine();
  const Tensors<3> in = contiguous(Tensors<3>{grad_y, x, weight});
  with_storage_type(x.scalar_type(), [&]<typename T>() {
    kernels::linear_backward<T>({read<T>(in[1]), rows_of(x), x.size(-1)},
                                {{read<T>(in[2]), weight.size(0), read<T>(in[0]),
                                  write_if<T>(needs[1], out[1]), write_if<T>(needs[2], out[2])}},
                                write_if<T>(needs[0], out[0]));
  });
  return out;
}

class Linear : public torch::autograd::Function<Linear> {
 public:
  using Context = torch::autograd::AutogradContext;

  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& weight, Maybe bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, weight});
    ctx->saved_data["has_bias"] = bias.has_value();
    return ops::linear(x, weight, bias);
  }

  static List backward(Context* ctx, const List& grads) {
    const List saved = ctx->get_saved_variables();
    const Needs needs = {ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                         // A bias that is not there is no input of this node.
                         ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(2)};
    List out = find<decltype(linear_backward_cpu)>("hopmix::linear_backward")
                   .call(grads[0], saved[0], saved[1], needs);
    for (size_t i = 0; i < needs.size(); ++i) {
      if (!needs[i]) out[i] = Tensor();
    }
    return out;
  }
};

// ---- mlp

using MlpNeeds = std::array<bool, 5>;

void check_mlp(const std::string& op, const Tensor& x, const Tensor& up, const Tensor& up_bias,
               const Tensor& down, const Tensor& down_bias) {
  Arguments args(op);
  check_rows(args, x);
  args.tensor("up", up, {"M", "K"});
  args.tensor("up_bias", up_bias, {"M"});
  args.tensor("down", down, {"N", "M"});
  args.tensor("down_bias", down_bias, {"N"});
}

template <typename T>
kernels::MlpInputs<T> mlp_inputs(const Tensors<5>& in) {
  return {read<T>(in[0]), read<T>(in[1]), read<T>(in[2]), read<T>(in[3]), read<T>(in[4]),
          rows_of(in[0]), in[1].size(1),  in[1].size(0),  in[3].size(0)};
}

// y, and the hidden numbers before the activation; these not for inference.
List mlp_meta(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
              const Tensor& down_bias, bool keep) {
  check_mlp("mlp", x, up, up_bias, down, down_bias);
  return {at::empty_symint(with_last(x, down.sym_size(0)), x.options()),
          keep ? at::empty_symint(with_last(x, up.sym_size(0)), x.options())
               : at::empty({0}, x.options())};
}

List mlp_cpu(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
             const Tensor& down_bias, bool keep) {
  List out = mlp_meta(x, up, up_bias, down, down_bias, keep);
  ensure_gemm_engine();
  const Tensors<5> in = contiguous(Tensors<5>{x, up, up_bias, down, down_bias});
  with_storage_type(x.scalar_type(), [&]<typename T>() {
    kernels::mlp_forward<T>(mlp_inputs<T>(in), write_if<T>(keep, out[1]), write<T>(out[0]));
  });
  return out;
}

List mlp_backward_meta(const Tensor& grad_y, const Tensor& hidden, const Tensor& x,
                       const Tensor& up, const Tensor& up_bias, const Tensor& down,
                       const Tensor& down_bias, MlpNeeds needs) {
  const std::string op = "mlp_backward";
  check_mlp(op, x, up, up_bias, down, down_bias);
  check_last(op, "grad_y", grad_y, "[..., N]", x, down.sym_size(0), "N");
  check_last(op, "hidden", hidden, "[..., M]", x, up.sym_size(0), "M");
  return gradients({x, up, up_bias, down, down_bias}, needs);
}

List mlp_backward_cpu(const Tensor& grad_y, const Tensor& hidden, const Tensor& x, const Tensor& up,
                      const Tensor& up_bias, const Tensor& down, const Tensor& down_bias,
                      MlpNeeds needs) {
  List out = mlp_backward_meta(grad_y, hidden, x, up, up_bias, down, down_bias, needs);
  ensure_gemm_engine();
  const Tensors<5> in = contiguous(Tensors<5>{x, up, up_bias, down, down_bias});
  const Tensors<2> given = contiguous(Tensors<2>{grad_y, hidden});
  with_storage_type(x.scalar_type(), [&]<typename T>() {
    const auto to = [&](size_t i) { return write_if<T>(needs[i], out[i]); };
    kernels::mlp_backward<T>(mlp_inputs<T>(in), read<T>(given[1]), read<T>(given[0]),
                             {to(0), to(1), to(2), to(3), to(4)});
  });
  return out;
}

class Mlp : public torch::autograd::Function<Mlp> {
 public:
  using Context = torch::autograd::AutogradContext;

  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& up, const Tensor& up_bias,
                        const Tensor& down, const Tensor& down_bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const List out = find<decltype(mlp_cpu)>("hopmix::_mlp")
                         .call(x, up, up_bias, down, down_bias, /*keep=*/true);
    ctx->save_for_backward({out[1], x, up, up_bias, down, down_bias});
    return out[0];
  }

  static List backward(Context* ctx, const List& grads) {
    const List saved = ctx->get_saved_variables();
    MlpNeeds needs;
    for (size_t i = 0; i < needs.size(); ++i) needs[i] = ctx->needs_input_grad(i);
    List out =
        find<decltype(mlp_backward_cpu)>("hopmix::mlp_backward")
            .call(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], needs);
    for (size_t i = 0; i < needs.size(); ++i) {
      if (!needs[i]) out[i] = Tensor();
    }
    return out;
  }
};

Tensor mlp_forward_cpu(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
                       const Tensor& down_bias) {
  return mlp_cpu(x, up, up_bias, down, down_bias, /*keep=*/false)[0];
}

Tensor mlp_forward_meta(const Tensor& x, const Tensor& up, const Tensor& up_bias,
                        const Tensor& down, const Tensor& down_bias) {
  return mlp_meta(x, up, up_bias, down, down_bias, /*keep=*/false)[0];
}

List parts_autograd(const Tensor& x, at::TensorList weights, Widths widths) {
  return Parts::apply(x, weights, widths);
}
Tensor linear_autograd(const Tensor& x, const Tensor& weight, Maybe bias) {
  return Linear::apply(x, weight, bias);
}
Tensor mlp_autograd(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
                    const Tensor& down_bias) {
  if (at::GradMode::is_enabled()) return Mlp::apply(x, up, up_bias, down, down_bias);
  const at::AutoDispatchBelowADInplaceOrView below;
  return ops::mlp(x, up, up_bias, down, down_bias);
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  for (const char* schema :
       {"linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
        "linear_backward(Tensor grad_y, Tensor x, Tensor weight, bool[3] needs) -> Tensor[]",
        "linear_parts(Tensor x, Tensor[] weights, int[] widths) -> Tensor[]",
        "linear_parts_backward(Tensor[] grads, Tensor x, Tensor[] weights, int[] widths, "
        "bool needs_x, bool needs_weights) -> Tensor[]",
        "mlp(Tensor x, Tensor up, Tensor up_bias, Tensor down, Tensor down_bias) -> Tensor",
        "_mlp(Tensor x, Tensor up, Tensor up_bias, Tensor down, Tensor down_bias, bool keep) "
        "-> Tensor[]",
        "mlp_backward(Tensor grad_y, Tensor hidden, Tensor x, Tensor up, Tensor up_bias, "
        "Tensor down, Tensor down_bias, bool[5] needs) -> Tensor[]"}) {
    m.def(schema, {at::Tag::pt2_compliant_tag});
  }
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  m.impl("linear", &linear_cpu);
  m.impl("linear_backward", &linear_backward_cpu);
  m.impl("linear_parts", &parts_cpu);
  m.impl("linear_parts_backward", &parts_backward_cpu);
  m.impl("mlp", &mlp_forward_cpu);
  m.impl("_mlp", &mlp_cpu);
  m.impl("mlp_backward", &mlp_backward_cpu);
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  m.impl("linear", &linear_meta);
  m.impl("linear_backward", &linear_backward_meta);
  m.impl("linear_parts", &parts_meta);
  m.impl("linear_parts_backward", &parts_backward_meta);
  m.impl("mlp", &mlp_forward_meta);
  m.impl("_mlp", &mlp_meta);
  m.impl("mlp_backward", &mlp_backward_meta);
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  m.impl("linear", &linear_autograd);
  m.impl("linear_parts", &parts_autograd);
  m.impl("mlp", &mlp_autograd);
  for (const char* name : {"linear_backward", "linear_parts_backward", "_mlp", "mlp_backward"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, Maybe bias) {
  static const auto op = find<decltype(linear_cpu)>("hopmix::linear");
  return op.call(x, weight, bias);
}

List linear_parts(const Tensor& x, at::TensorList weights, at::IntArrayRef widths) {
  static const auto op = find<decltype(parts_cpu)>("hopmix::linear_parts");
  return op.call(x, weights, widths);
}

Tensor mlp(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
           const Tensor& down_bias) {
  static const auto op = find<decltype(mlp_forward_cpu)>("hopmix::mlp");
  return op.call(x, up, up_bias, down, down_bias);
}

}  // namespace hopmix::ops

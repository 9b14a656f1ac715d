// linear_parts. Lists of tensors are beyond what ops/operator.h describes, so it registers itself.
// The mathematics is in kernels/maps/README.md.
#include "hopmix/kernels/maps/linear.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/engines.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {
namespace {

using Widths = at::IntArrayRef;
using List = std::vector<Tensor>;

template <typename Signature>
auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
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

void check_parts(const std::string& op, const Tensor& x, at::TensorList weights, Widths widths) {
  Arguments args(op);
  args.tensor("x", x, {"...", "K"});
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

List parts_autograd(const Tensor& x, at::TensorList weights, Widths widths) {
  return Parts::apply(x, weights, widths);
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  for (const char* schema :
       {"linear_parts(Tensor x, Tensor[] weights, int[] widths) -> Tensor[]",
        "linear_parts_backward(Tensor[] grads, Tensor x, Tensor[] weights, int[] widths, "
        "bool needs_x, bool needs_weights) -> Tensor[]"}) {
    m.def(schema, {at::Tag::pt2_compliant_tag});
  }
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  m.impl("linear_parts", &parts_cpu);
  m.impl("linear_parts_backward", &parts_backward_cpu);
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  m.impl("linear_parts", &parts_meta);
  m.impl("linear_parts_backward", &parts_backward_meta);
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  m.impl("linear_parts", &parts_autograd);
  m.impl("linear_parts_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

List linear_parts(const Tensor& x, at::TensorList weights, at::IntArrayRef widths) {
  static const auto op = find<decltype(parts_cpu)>("hopmix::linear_parts");
  return op.call(x, weights, widths);
}

}  // namespace hopmix::ops

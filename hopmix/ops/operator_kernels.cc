#include "hopmix/ops/operator_kernels.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

using Stack = torch::jit::Stack;
using Values = at::ArrayRef<c10::IValue>;

std::vector<Tensor> tensors_of(const c10::IValue& value) { return value.toTensorVector(); }

}  // namespace

bool differentiates(const Tensor& t) {
  return t.defined() &&
         ((at::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(/*level=*/0).defined());
}

void forward_kernel(const OperatorForm& form, bool keeps, bool runs, Stack& stack) {
  const Description& op = *form.op;
  const size_t count = form.arguments.size();
  std::vector<Tensor> results;
  {
    Call call(op, form.arguments, torch::jit::last(stack, count), op.name);
    call.check();
    if (runs) call.bind();
    results = call.make_results(keeps);
    if (runs && std::any_of(results.begin(), results.begin() + op.outputs.size(),
                            [](const Tensor& t) { return t.numel() > 0; })) {
      op.forward(call);
    }
  }
  torch::jit::drop(stack, count);
  if (keeps) {
    stack.emplace_back(std::move(results));
  } else {
    for (size_t i = 0; i < op.outputs.size(); ++i) stack.emplace_back(std::move(results[i]));
  }
}

void backward_kernel(const OperatorForm& form, bool runs, Stack& stack) {
  const Description& op = *form.op;
  const size_t count =
      form.gradients() + (op.kept.empty() ? 0 : 1) + form.arguments.size() + /*needs*/ 1;
  std::vector<Tensor> gradients;
  {
    const Values all = torch::jit::last(stack, count);
    Call call(op, form.arguments,
              all.slice(count - 1 - form.arguments.size(), form.arguments.size()),
              std::string(op.name) + "_backward");
    call.check();
    call.check_given(all.slice(0, form.gradients()),
                     op.kept.empty() ? std::vector<Tensor>() : tensors_of(all[form.gradients()]));
    if (runs) call.bind();
    gradients = call.make_gradients(all.back().toBoolList());
    if (runs && call.has_outputs()) {
      op.backward(call);
    } else if (runs) {
      for (const Tensor& t : gradients) t.zero_();
    }
  }
  torch::jit::drop(stack, count);
  stack.emplace_back(std::move(gradients));
}

void versioned_kernel(const OperatorForm& form, Stack& stack) {
  std::vector<Tensor> written;
  const Values values = torch::jit::last(stack, form.arguments.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (form.arguments[i].schema.find("(a!)") != std::string::npos) {
      written.push_back(values[i].toTensor());
    }
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  form.plain->callBoxed(stack);
  for (const Tensor& t : written) t.unsafeGetTensorImpl()->bump_version();
}

namespace {

// One node of the graph, for all operators. Its inputs are the differentiable tensors there are.
class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  using Context = torch::autograd::AutogradContext;
  using Form = OperatorForm;

  static std::vector<Tensor> forward(Context* ctx, at::TensorList, const Form* form,
                                     const Stack* values) {
    const Description& op = *form->op;
    const at::AutoDispatchBelowADInplaceOrView below;
    Stack stack = *values;
    std::vector<Tensor> results;
    if (form->keeping) {
      form->keeping->callBoxed(stack);
      results = tensors_of(stack[0]);
    } else {
      form->plain->callBoxed(stack);
      for (c10::IValue& value : stack) results.push_back(std::move(value).toTensor());
    }
    std::vector<Tensor> outputs(results.begin(), results.begin() + op.outputs.size());
    const auto output_of = [&](std::string_view name) {
      size_t i = 0;
      while (op.outputs[i].name != name) ++i;
      return outputs[i];
    };
    std::vector<Tensor> saved;
    size_t next = op.outputs.size();
    for (const Kept& kept : op.kept) {
      if (kept.type == Kept::Type::kOutput) {
        saved.push_back(output_of(kept.name));
        continue;
      }
      const Tensor& made = results[next++];
      // Where nothing was rounded it is not kept twice.
      const bool is_output = kept.type == Kept::Type::kUnrounded &&
                             made.scalar_type() == output_of(kept.of).scalar_type();
      saved.push_back(is_output ? output_of(kept.of) : made);
    }
    c10::impl::GenericList options(c10::AnyType::get());
    for (const c10::IValue& value : *values) {
      if (value.isTensor()) {
        saved.push_back(value.toTensor());
      } else {
        options.push_back(value);
      }
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["options"] = options;
    // Which of the arguments are tensors; absent ones are options.
    c10::List<bool> is_tensor;
    for (const c10::IValue& value : *values) is_tensor.push_back(value.isTensor());
    ctx->saved_data["is_tensor"] = is_tensor;
    ctx->saved_data["form"] = reinterpret_cast<int64_t>(form);
    if (op.some_gradients) ctx->set_materialize_grads(false);
    std::vector<Tensor> constant;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!op.outputs[i].differentiable) constant.push_back(outputs[i]);
    }
    ctx->mark_non_differentiable(constant);
    return outputs;
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    const Form& form = *reinterpret_cast<const Form*>(ctx->saved_data["form"].toInt());
    const Description& op = *form.op;
    const std::vector<Tensor> saved = ctx->get_saved_variables();
    Stack stack;
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      if (!op.outputs[i].differentiable) continue;
      stack.push_back(grads[i].defined() ? c10::IValue(grads[i]) : c10::IValue());
    }
    size_t next = op.kept.size();
    if (next > 0) stack.emplace_back(std::vector<Tensor>(saved.begin(), saved.begin() + next));
    const size_t begin = stack.size();
    const auto options = ctx->saved_data["options"].toList();
    const auto is_tensor = ctx->saved_data["is_tensor"].toBoolList();
    size_t option = 0;
    for (const bool one : is_tensor) {
      if (one) {
        stack.emplace_back(saved[next++]);
      } else {
        stack.push_back(options.get(option++));
      }
    }
    c10::List<bool> needs;
    std::vector<size_t> present;  // autograd counts the tensors there are
    for (size_t i = 0; i < form.differentiable.size(); ++i) {
      const bool is_given = stack[begin + form.differentiable[i]].isTensor();
      needs.push_back(is_given && ctx->needs_input_grad(present.size()));
      if (is_given) present.push_back(i);
    }
    stack.emplace_back(needs);
    form.backward->callBoxed(stack);
    const std::vector<Tensor> gradients = tensors_of(stack[0]);
    std::vector<Tensor> out;
    for (const size_t i : present) out.push_back(needs.get(i) ? gradients[i] : Tensor());
    out.resize(out.size() + 2);  // nothing for what follows the tensors
    return out;
  }
};

}  // namespace

void autograd_kernel(const OperatorForm& form, Stack& stack) {
  const Description& op = *form.op;
  const size_t count = form.arguments.size();
  const Values values = torch::jit::last(stack, count);
  std::vector<Tensor> inputs;
  bool any = false;
  for (size_t i = 0; i < count; ++i) {
    if (!values[i].isTensor()) continue;
    const Argument& argument = form.arguments[i];
    const Tensor& t = values[i].toTensor();
    const bool wanted = argument.type != Argument::Type::kOption && differentiates(t);
    TORCH_CHECK_VALUE(!wanted || argument.differentiable, op.name, ": ", argument.name,
                      " requires a gradient, but has none");
    TORCH_CHECK_VALUE(!wanted || op.backward != nullptr, op.name, ": ", argument.name,
                      " requires a gradient, but a step of decoding has none: detach it, or use "
                      "torch.no_grad() or the operator of the whole sequence");
    if (!argument.differentiable) continue;
    inputs.push_back(t);
    any = any || wanted;
  }
  if (!any) {  // a node of the graph costs as much as a step of decoding
    const at::AutoDispatchBelowAutograd below;
    return form.plain->callBoxed(stack);
  }
  const Stack arguments(values.begin(), values.end());
  std::vector<Tensor> outputs = Differentiable::apply(at::TensorList(inputs), &form, &arguments);
  torch::jit::drop(stack, count);
  for (Tensor& t : outputs) stack.emplace_back(std::move(t));
}

}  // namespace hopmix::ops

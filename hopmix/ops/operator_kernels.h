// The kernels of every operator that ops/operator.h describes, on a stack of boxed values.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <vector>

#include "hopmix/ops/operator.h"

namespace hopmix::ops {

/// An operator on a pattern has two forms: by its tensors, and by its spec.
struct OperatorForm {
  std::shared_ptr<const Description> op;
  std::vector<Argument> arguments;
  std::vector<size_t> differentiable;  // of the arguments
  std::optional<c10::OperatorHandle> plain, keeping, backward;

  size_t gradients() const {  // that a backward is given
    return std::count_if(op->outputs.begin(), op->outputs.end(),
                         [](const Argument& a) { return a.differentiable; });
  }
};

/// Whether a result of t would have a derivative, forward mode included.
bool differentiates(const Tensor& t);

/// NAME, or with `keeps` _NAME, on CPU, or as a meta kernel if it does not run.
void forward_kernel(const OperatorForm& form, bool keeps, bool runs, torch::jit::Stack& stack);

/// NAME_backward.
void backward_kernel(const OperatorForm& form, bool runs, torch::jit::Stack& stack);

void autograd_kernel(const OperatorForm& form, torch::jit::Stack& stack);

/// Tells autograd of what is written in place, also where it is off itself.
void versioned_kernel(const OperatorForm& form, torch::jit::Stack& stack);

}  // namespace hopmix::ops

// What operators for decoding alone have in common: no derivative.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <initializer_list>
#include <utility>

#include "hopmix/ops/optional_tensors.h"

namespace hopmix::ops {

inline const Tensor* address_of(Maybe t) { return t ? &*t : nullptr; }

/// Throws ValueError if one of `inputs` (null: absent) asks for a gradient, by its name.
inline void refuse_gradients(const char* op,
                             std::initializer_list<std::pair<const char*, const Tensor*>> inputs) {
  if (!at::GradMode::is_enabled()) return;
  for (const auto& [name, x] : inputs) {
    TORCH_CHECK_VALUE(x == nullptr || !x->requires_grad(), op, ": ", name,
                      " requires a gradient, but a step of decoding has none: detach it, or use "
                      "torch.no_grad() or the operator of the whole sequence");
  }
}

}  // namespace hopmix::ops

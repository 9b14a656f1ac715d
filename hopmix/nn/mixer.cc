#include "hopmix/nn/mixer.h"

namespace hopmix::nn {

int64_t State::bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.numel() * tensor.element_size();
  return total;
}

}  // namespace hopmix::nn

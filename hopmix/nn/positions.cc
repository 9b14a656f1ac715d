#include "hopmix/nn/positions.h"

#include <algorithm>
#include <cmath>

#include "hopmix/ops/ops.h"

namespace hopmix::nn {

Starts::Starts(std::span<State* const> of_each_row) {
  for (const State* state : of_each_row) positions_.push_back(state->position);
}

Tensor Starts::of_tokens(int64_t time) const {
  if (packing_) return packing_.positions(time).unsqueeze(0);
  return torch::tensor(positions_, torch::kInt64).unsqueeze(1) + torch::arange(time);
}

int64_t Starts::last(int64_t time) const {
  return *std::max_element(positions_.begin(), positions_.end()) + packing_.longest(time) - 1;
}

Turns::Turns(int64_t width, int64_t time, const Starts& start, at::ScalarType type) {
  if (time == 1) {  // a decoding step: few and short operations
    const int64_t pairs = width / 2, rows = static_cast<int64_t>(start.positions().size());
    const auto options = torch::TensorOptions().dtype(torch::kFloat64);
    cos = torch::empty({rows, 1, pairs}, options);
    sin = torch::empty({rows, 1, pairs}, options);
    auto *c = cos.mutable_data_ptr<double>(), *s = sin.mutable_data_ptr<double>();
    for (const int64_t position : start.positions()) {
      for (int64_t p = 0; p < pairs; ++p) {
        const double angle =
            static_cast<double>(position) *
            std::pow(10000.0, -static_cast<double>(p) / static_cast<double>(pairs));
        *c++ = std::cos(angle);
        *s++ = std::sin(angle);
      }
    }
    cos = cos.to(type);
    sin = sin.to(type);
    return;
  }
  const Tensor frequency = torch::pow(
      10000.0, -torch::arange(0, width, 2, torch::kFloat64) / static_cast<double>(width));
  const Tensor angle = start.of_tokens(time).to(torch::kFloat64).unsqueeze(2) * frequency;
  cos = angle.cos().to(type);
  sin = angle.sin().to(type);
}

Tensor apply_rope(const Tensor& x, const Starts& start) {
  return apply_rope(x, Turns(x.size(3), x.size(1), start, x.scalar_type()));
}

Tensor apply_rope(const Tensor& x, const Turns& turns) {
  return ops::rope(x, turns.cos, turns.sin);
}

void rotate(std::vector<Tensor>& parts, const std::vector<size_t>& which, const Starts& start) {
  const Tensor& x = parts[which[0]];
  const Turns turns(x.size(3), x.size(1), start, x.scalar_type());
  for (const size_t i : which) parts[i] = apply_rope(parts[i], turns);
}

}  // namespace hopmix::nn

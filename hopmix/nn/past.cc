#include "hopmix/nn/past.h"

#include <algorithm>

#include "hopmix/base/error.h"

namespace hopmix::nn {
namespace {

constexpr int64_t kFirstLength = 4096;

Tensor to_tensor(const std::vector<int64_t>& index, torch::Device device) {
  return torch::tensor(index, torch::kInt64).to(device);
}

}  // namespace

Past::Past(const std::string& spec) : pattern_(spec, 1) {}

std::vector<int32_t> Past::row(int64_t i) const {
  if (i >= pattern_.size()) {
    // Twice what is needed, so that a stream rebinds log(n) times; a dag file has a length of its
    // own and may refuse.
    try {
      pattern_ = Pattern(pattern_.spec(), std::max(kFirstLength, 2 * i));
    } catch (const Error&) {
      pattern_ = Pattern(pattern_.spec(), i + 1);
    }
  }
  std::vector<int32_t> cols;
  pattern_.row(i, cols);
  return cols;
}

Tensor Past::read(const State& state, const std::string& name) const {
  const Tensor& held = state.tensors.at(name);
  if (pattern_.inherits()) return held;
  const std::vector<int32_t> cols = row(state.position);
  return held.index_select(1, to_tensor({cols.begin(), cols.end()}, held.device()));
}

void Past::append(State& state, const std::vector<std::pair<std::string, Tensor>>& entries) const {
  const int64_t i = state.position;
  Tensor keep;  // undefined: keep all
  if (pattern_.inherits()) {
    const std::vector<int32_t> now = row(i), next = row(i + 1);
    std::vector<int64_t> slots;
    for (const int32_t j : next) {
      // row(i + 1) lies in row(i) and {i}; slot of i is one past those of row(i).
      slots.push_back(std::lower_bound(now.begin(), now.end(), j) - now.begin());
    }
    if (slots.size() <= now.size()) keep = to_tensor(slots, entries.front().second.device());
  }
  for (const auto& [name, value] : entries) {
    const Tensor all = torch::cat({state.tensors.at(name), value.unsqueeze(1)}, 1);
    state.tensors[name] = keep.defined() ? all.index_select(1, keep) : all;
  }
}

int64_t Past::held(int64_t t) const {
  return pattern_.inherits() ? static_cast<int64_t>(row(t).size()) : t;
}

}  // namespace hopmix::nn

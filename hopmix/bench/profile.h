// Where time goes, by phase and by operator, as PyTorch's own record functions tell it.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace hopmix::bench {

/// CPU seconds of a phase (a user scope), and of them what each operator took itself, without those
/// that it calls; what no operator took is under "". Operators of the backward have the name of
/// their autograd node before their own: "MulBackward0: aten::mul".
struct Phase {
  double seconds = 0;
  std::map<std::string, double> operators;
};

/// Runs `body` and says where this thread's time went, by user scope. Operators outside every scope
/// are under "".
std::map<std::string, Phase> profile(const std::function<void()>& body);

}  // namespace hopmix::bench

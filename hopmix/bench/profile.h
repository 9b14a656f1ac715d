// Profiles by phase and operator, using PyTorch's record functions.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace hopmix::bench {

/// CPU seconds of a phase (a user scope), and each operator's own share, without the operators it
/// calls; "" holds time outside operators. Operators of the backward are prefixed with their
/// autograd node: "MulBackward0: aten::mul".
struct Phase {
  double seconds = 0;
  std::map<std::string, double> operators;
};

/// Runs `body` and returns this thread's time by user scope. Operators outside every scope are
/// under "".
std::map<std::string, Phase> profile(const std::function<void()>& body);

}  // namespace hopmix::bench

// The one exception type for bad input. Its message is one line that names the argument, its value
// and what is allowed.
#pragma once

#include <stdexcept>
#include <string>

namespace hopmix {

/// Bad input from a caller or a user. `what()` is one line without a trailing newline; the program
/// prints it and exits with code 2, the operators raise it as a Python ValueError.
class Error : public std::invalid_argument {
 public:
  explicit Error(const std::string& message) : std::invalid_argument(message) {}
};

}  // namespace hopmix

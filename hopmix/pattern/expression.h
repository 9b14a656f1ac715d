// Increasing expressions in k, such as k^2+1, read and evaluated by muParser. Private to this
// folder.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hopmix/pattern/node.h"

namespace hopmix {

/// Why an expression is not an f pattern, and where.
struct ExpressionError : std::runtime_error {
  ExpressionError(size_t where, const std::string& message)
      : std::runtime_error(message), at(where) {}
  size_t at;  // number of characters before the error
};

/// The names an expression may use besides k: muParser's functions and constants, floor and ceil.
const std::vector<std::string>& expression_names();

/// f(0), f(1), ... up to the last value below n. Throws ExpressionError if the text is not an
/// expression in k, or if some f(k) in that range is not a finite whole number, is below 1, or does
/// not exceed the one before.
terms::Offsets evaluate_expression(std::string_view text, int64_t n);

}  // namespace hopmix

// For tests only.
#pragma once

#include <string>

#include "hopmix/base/error.h"

namespace hopmix {

/// The message of the Error that `body()` throws; empty if it throws nothing.
template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace hopmix

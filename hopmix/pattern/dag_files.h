// The files that a pattern is read from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hopmix {

/// The files of the dag terms of `spec`, in order. Throws Error on a malformed spec, or if a file
/// cannot be read.
std::vector<std::string> dag_files(std::string_view spec);

}  // namespace hopmix

// Suggests the known name closest to a misspelled one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hopmix {

/// The fewest single-character insertions, deletions, substitutions and swaps of neighbours that
/// turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

/// The member of `known` closest to `name`; empty if none is close (more than half of `name` would
/// change).
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

/// "; did you mean 'X'?" for the nearest name, else "; known: A, B, C". Appended to error messages.
std::string suggestion(std::string_view name, const std::vector<std::string>& known);

}  // namespace hopmix

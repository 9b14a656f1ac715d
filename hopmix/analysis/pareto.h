// Pareto fronts.
#pragma once

#include <cstddef>
#include <vector>

namespace hopmix {

/// Whether `a` is at most `b` in every coordinate and smaller in at least one.
bool dominates(const std::vector<double>& a, const std::vector<double>& b);

/// For each point, whether no other dominates it; of equal points only the first is on the front.
/// All points must have the same number of coordinates; smaller is better. O(points^2).
std::vector<bool> pareto_front(const std::vector<std::vector<double>>& points);

}  // namespace hopmix

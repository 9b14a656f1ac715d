// The points of a set that no other point beats.
#pragma once

#include <cstddef>
#include <vector>

namespace hopmix {

/// Whether `a` is at most `b` in every coordinate and below it in one.
bool dominates(const std::vector<double>& a, const std::vector<double>& b);

/// For each point whether no other dominates it; of equal points the first alone is on the front.
/// All points have the same number of coordinates, smaller is better. O(points^2).
std::vector<bool> pareto_front(const std::vector<std::vector<double>>& points);

}  // namespace hopmix

// Places readable labels next to the points of a plot. Private to this folder.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace hopmix {

using Point = std::array<double, 2>;  // x, y in pixels, y upwards

struct Box {
  double left, right, bottom, top;
};

/// The point of `box` nearest to `point`, where a line between label and point ends.
Point nearest_point(const Box& box, const Point& point);

/// A text box in DejaVu Sans 10 for each of `points`, inside `panel` and close to its point. As far
/// as there is room, boxes cover no marker and no other label, and the lines to them cross none.
/// Places labels one at a time, in a few passes. O(points^2).
std::vector<Box> place_labels(const std::vector<Point>& points,
                              const std::vector<std::string>& labels, const Box& panel);

}  // namespace hopmix

// Where the labels of points in a picture go, so that they can be read. Private to this folder.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace hopmix {

using Point = std::array<double, 2>;  // x, y in pixels, y upwards

struct Box {
  double left, right, bottom, top;
};

/// The point of `box` nearest to `point`: where a line between label and point ends.
Point nearest_point(const Box& box, const Point& point);

/// A box of text in DejaVu Sans 10 for each of `points`, inside `panel` and close to its point,
/// where it covers no marker and no label and its line passes through none, as far as there is
/// room. Places are tried one label at a time, a few times over. O(points^2).
std::vector<Box> place_labels(const std::vector<Point>& points,
                              const std::vector<std::string>& labels, const Box& panel);

}  // namespace hopmix

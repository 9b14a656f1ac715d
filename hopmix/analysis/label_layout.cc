#include "hopmix/analysis/label_layout.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace hopmix {
namespace {

// A little larger than the text.
constexpr double kCharacter = 7.2, kLine = 14, kMarker = 8;
constexpr double kCrossing = 300;  // cost, in pixels, of a line through another point or label
constexpr int kRounds = 4, kDirections = 24;
constexpr std::array<double, 8> kRadii = {11, 18, 28, 40, 54, 70, 90, 115};

double overlap(const Box& a, const Box& b) {
  const double x = std::min(a.right, b.right) - std::max(a.left, b.left);
  const double y = std::min(a.top, b.top) - std::max(a.bottom, b.bottom);
  return x > 0 && y > 0 ? x * y : 0;
}

double distance_to_segment(const Point& p, const Point& a, const Point& b) {
  const double x = b[0] - a[0], y = b[1] - a[1], length = x * x + y * y;
  const double t =
      length > 0 ? std::clamp(((p[0] - a[0]) * x + (p[1] - a[1]) * y) / length, 0.0, 1.0) : 0;
  return std::hypot(p[0] - a[0] - t * x, p[1] - a[1] - t * y);
}

bool crosses(const Point& a, const Point& b, const Box& box) {
  constexpr int kSteps = 24;
  for (int k = 0; k <= kSteps; ++k) {
    const double t = static_cast<double>(k) / kSteps;
    const double x = a[0] + t * (b[0] - a[0]), y = a[1] + t * (b[1] - a[1]);
    if (x > box.left && x < box.right && y > box.bottom && y < box.top) return true;
  }
  return false;
}

struct Layout {
  const std::vector<Point>& points;
  const Box& panel;
  std::vector<std::optional<Box>> boxes;

  // The cost of putting the label of point p into `box`.
  double cost(size_t p, const Box& box) const {
    const Point end = nearest_point(box, points[p]);
    double cost = 0;
    for (size_t q = 0; q < points.size(); ++q) {
      if (q == p) continue;
      const auto& [x, y] = points[q];
      const Box marker{x - kMarker, x + kMarker, y - kMarker, y + kMarker};
      cost += overlap({box.left - 3, box.right + 3, box.bottom, box.top}, marker);
      // A line that passes another point would seem to label it. Unavoidable for coinciding points.
      const bool same = std::hypot(x - points[p][0], y - points[p][1]) < 3;
      if (!same && distance_to_segment(points[q], points[p], end) < kMarker) cost += kCrossing;
      if (!boxes[q]) continue;
      // Wider than the box, so that two adjacent labels do not read as one.
      const Box& other = *boxes[q];
      cost += 3 * overlap({box.left - 14, box.right + 14, box.bottom - 1, box.top + 1}, other);
      if (crosses(points[p], end, other)) cost += kCrossing;
      if (crosses(points[q], nearest_point(other, points[q]), box)) cost += kCrossing;
    }
    const double area = (box.right - box.left) * (box.top - box.bottom);
    return cost + 10 * (area - overlap(box, panel));
  }
};

}  // namespace

Point nearest_point(const Box& box, const Point& point) {
  return {std::clamp(point[0], box.left, box.right), std::clamp(point[1], box.bottom, box.top)};
}

std::vector<Box> place_labels(const std::vector<Point>& points,
                              const std::vector<std::string>& labels, const Box& panel) {
  Layout layout{points, panel, std::vector<std::optional<Box>>(points.size())};
  for (int round = 0; round < kRounds; ++round) {
    for (size_t p = 0; p < points.size(); ++p) {
      const double half = kCharacter / 2 * static_cast<double>(labels[p].size());
      double least = INFINITY;
      Box best{};
      for (const double radius : kRadii) {
        for (int direction = 0; direction < kDirections; ++direction) {
          const double angle = 2 * M_PI * direction / kDirections;
          const double cosine = std::cos(angle), sine = std::sin(angle);
          // The near side of the label (the middle, for one above or below) is in that direction.
          const double side = std::abs(cosine) < 0.2 ? 0 : std::copysign(half, cosine);
          const double x = points[p][0] + radius * cosine + side;
          const double y = points[p][1] + (radius + kLine / 2 - 4) * sine;
          const Box box{x - half, x + half, y - kLine / 2, y + kLine / 2};
          const double slanted = direction % (kDirections / 4) == 0 ? 0 : 0.5;
          const double cost = radius / 10 + slanted + layout.cost(p, box);
          if (cost < least) {
            least = cost;
            best = box;
          }
        }
      }
      layout.boxes[p] = best;
    }
  }
  std::vector<Box> boxes;
  for (const std::optional<Box>& box : layout.boxes) boxes.push_back(*box);
  return boxes;
}

}  // namespace hopmix

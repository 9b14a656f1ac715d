// A set of patterns as a picture: what they carry against what they cost.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace hopmix {

/// One pattern. Absent quantities leave it out of their panel.
struct PlottedPattern {
  std::string label;
  double reads = 0;  // a token, on average
  double cache = 0;  // peak
  std::optional<double> mean_hops;
  std::optional<double> congestion;
};

inline constexpr int kParetoHeight = 600;  // pixels

/// The width of the picture: a panel each for mean hops and congestion, as far as any are known.
/// Throws Error if there are none.
int pareto_width(const std::vector<PlottedPattern>& patterns);

/// A script for plot() (gnuplot.h) of that width and kParetoHeight: mean hops, and congestion,
/// against reads per token, cache as colour, a line through the points that no other beats in these
/// two. Throws Error as pareto_width does. Labels are placed where they cover nothing, if there is
/// room.
std::string pareto_script(const std::vector<PlottedPattern>& patterns, const std::string& title);

}  // namespace hopmix

// Plots a set of patterns: what they carry against what they cost.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace hopmix {

/// One pattern. A panel leaves out patterns that lack its quantity.
struct PlottedPattern {
  std::string label;
  double reads = 0;  // per token, on average
  double cache = 0;  // at its peak
  std::optional<double> mean_hops;
  std::optional<double> congestion;
};

inline constexpr int kParetoHeight = 600;  // pixels

/// The width of the plot: one panel each for mean hops and congestion, if any pattern has them.
/// Throws Error if none does.
int pareto_width(const std::vector<PlottedPattern>& patterns);

/// A script for plot() (gnuplot.h) of that width and kParetoHeight: mean hops and congestion
/// against reads per token, with the cache as colour and a line through the Pareto front of each
/// panel. Throws Error as pareto_width does. Places labels where they cover nothing, if there is
/// room.
std::string pareto_script(const std::vector<PlottedPattern>& patterns, const std::string& title);

}  // namespace hopmix

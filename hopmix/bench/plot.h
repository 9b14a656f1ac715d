// Plots time against length.
#pragma once

#include <filesystem>

#include "hopmix/bench/report.h"

namespace hopmix::bench {

/// Draws, for each direction, time per token against length, both logarithmic, with one line per
/// case. If `rates`, also draws the useful bandwidth of cases that fetch rows, below the load
/// bandwidth of the machine. The results must share batch size, heads and width. Throws Error if
/// the ending is not .svg or .png, or if gnuplot fails.
void plot_report(const Report& report, bool rates, const std::filesystem::path& output);

}  // namespace hopmix::bench

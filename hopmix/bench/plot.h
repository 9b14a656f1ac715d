// Time against length as a picture.
#pragma once

#include <filesystem>

#include "hopmix/bench/report.h"

namespace hopmix::bench {

/// Draws, for each direction, time a token against length, both logarithmic, a line for each case;
/// beside it, of cases that fetch rows, useful bytes a second against length under what the machine
/// loads at each (if `rates`). Results of one batch size, number of heads and width. Throws Error
/// for an ending other than .svg or .png, or where gnuplot fails.
void plot_report(const Report& report, bool rates, const std::filesystem::path& output);

}  // namespace hopmix::bench

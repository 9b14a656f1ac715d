// The table of a sweep as a picture.
#pragma once

#include <filesystem>

#include "hopmix/train/sweep.h"

namespace hopmix::cli {

/// One panel a column: a bar a structure with its deviation over seeds, the paper's figure as a
/// diamond. SVG or PNG by the ending of `output`. Throws Error if gnuplot is missing or fails.
void plot_sweep(const train::Sweep& sweep, const train::Table& table,
                const std::filesystem::path& output);

}  // namespace hopmix::cli

// Draws the table of a sweep.
#pragma once

#include <filesystem>

#include "hopmix/train/sweep.h"

namespace hopmix::cli {

/// Draws one panel per column: a bar per structure with its deviation over seeds, and the paper's
/// figure as a diamond. The extension of `output` selects SVG or PNG. Throws Error if gnuplot is
/// missing or fails.
void plot_sweep(const train::Sweep& sweep, const train::AccuracyTable& table,
                const std::filesystem::path& output);

}  // namespace hopmix::cli

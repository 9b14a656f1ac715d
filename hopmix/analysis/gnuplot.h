// Plots through the program gnuplot (5.4 or later).
#pragma once

#include <filesystem>
#include <string>

namespace hopmix {

/// Draws `script` (gnuplot commands, with data as inline blocks) into `output`, .svg or .png by its
/// ending, `width` by `height` in pixels. Terminal and output are set before the script runs. The
/// file appears whole or not at all. Throws Error naming the file for another ending, a missing
/// gnuplot, a script that gnuplot refuses (with its message) and a place that cannot be written.
void plot(const std::string& script, const std::filesystem::path& output, int width, int height);

/// `text` as a gnuplot string constant, quotes included.
std::string gnuplot_string(const std::string& text);

}  // namespace hopmix

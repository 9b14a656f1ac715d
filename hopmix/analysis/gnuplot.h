// Plots with gnuplot (5.4 or later).
#pragma once

#include <filesystem>
#include <string>

namespace hopmix {

/// Draws `script` (gnuplot commands, with data as inline blocks) to `output`, which must end in
/// .svg or .png, `width` by `height` pixels. Sets terminal and output before running the script.
/// Writes the file atomically. Throws Error naming the file if the ending is wrong, gnuplot is
/// missing or rejects the script (with its message), or the file cannot be written.
void plot(const std::string& script, const std::filesystem::path& output, int width, int height);

/// `text` as a gnuplot string constant, quotes included.
std::string gnuplot_string(const std::string& text);

}  // namespace hopmix

// Draws files through other programs, such as gnuplot. Private to this folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hopmix {

/// `output` with .tmp at its end: where a program is to write before the file takes its name.
std::filesystem::path temporary_for(const std::filesystem::path& output);

/// What came of a drawing.
struct Drawn {
  bool done = false;
  std::string messages;  // what the program wrote to stdout and stderr
};

/// Runs `command` (a program on PATH, then its arguments) with `input` as its standard input; when
/// it ends well, what it wrote at temporary_for(output) becomes `output`, whole or not at all.
/// Throws Error naming the output for a missing program and a place that cannot be written; a
/// program that refuses is for the caller to explain.
Drawn draw(const std::vector<std::string>& command, const std::string& input,
           const std::filesystem::path& output);

}  // namespace hopmix

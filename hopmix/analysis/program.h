// Runs external programs, such as gnuplot, to draw files. Private to this folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hopmix {

/// Where a program must write what becomes `output`: a temporary file of this process.
std::filesystem::path temporary_for(const std::filesystem::path& output);

/// The result of running a program.
struct Drawn {
  bool done = false;
  std::string messages;  // what the program wrote to stdout and stderr
};

/// Runs `command` (a program on PATH and its arguments) with `input` as standard input. If it
/// succeeds, copies what it wrote at temporary_for(output) to `output` (write_file). Throws Error
/// naming the output if the program is missing or the file cannot be written; if the program itself
/// fails, the caller reports why.
Drawn draw(const std::vector<std::string>& command, const std::string& input,
           const std::filesystem::path& output);

}  // namespace hopmix

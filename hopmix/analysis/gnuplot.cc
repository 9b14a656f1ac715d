#include "hopmix/analysis/gnuplot.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string_view>

#include "hopmix/analysis/program.h"
#include "hopmix/base/error.h"

namespace hopmix {
namespace {

constexpr int kLinesBefore = 2;  // our own lines before the script

std::string terminal(const std::filesystem::path& output, int width, int height) {
  const std::string size = " size " + std::to_string(width) + "," + std::to_string(height);
  const std::string style = " enhanced font 'DejaVu Sans,13' background '#ffffff'";
  const std::string ending = output.extension().string();
  if (ending == ".svg") return "set terminal svg" + size + style;
  if (ending == ".png") return "set terminal pngcairo" + size + style;
  throw Error("plot file '" + output.string() + "' must end in .svg or .png");
}

// The line that says what is wrong, such as "line 3: invalid command", with line numbers of the
// script. gnuplot echoes the command and marks the position on the lines before it.
std::string complaint(const std::string& messages) {
  std::istringstream in(messages);
  std::string first;
  for (std::string line; std::getline(in, line);) {
    std::string_view text = line;
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    int number = 0, read = 0;
    if (std::sscanf(line.c_str(), "\"/dev/stdin\" line %d: %n", &number, &read) == 1) {
      const std::string what(text.substr(read));
      return number <= kLinesBefore ? what  // an error about the output file
                                    : "line " + std::to_string(number - kLinesBefore) + ": " + what;
    }
    if (first.empty()) first = text;
  }
  return first.empty() ? "no message" : first;
}

}  // namespace

std::string gnuplot_string(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\n') continue;
    quoted += c;
    if (c == '\'') quoted += c;
  }
  return quoted + "'";
}

void plot(const std::string& script, const std::filesystem::path& output, int width, int height) {
  const std::string commands = terminal(output, width, height) + "\nset output " +
                               gnuplot_string(temporary_for(output).string()) + "\n" + script +
                               "\nunset output\n";
  // Pass the script as a file, so that messages have line numbers.
  const Drawn drawn = draw({"gnuplot", "/dev/stdin"}, commands, output);
  if (!drawn.done) {
    throw Error("cannot plot '" + output.string() +
                "': gnuplot says: " + complaint(drawn.messages));
  }
}

}  // namespace hopmix

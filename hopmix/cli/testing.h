// For tests only.
#pragma once

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

namespace hopmix::cli {

/// Runs the subcommand that `add` registers with these arguments, its name first, and returns what
/// it prints. Lets its exceptions through.
inline std::string output_of(void (*add)(CLI::App&), const std::vector<std::string>& arguments) {
  CLI::App app;
  add(app);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  testing::internal::CaptureStdout();
  try {
    app.parse(reversed);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  std::fflush(stdout);
  return testing::internal::GetCapturedStdout();
}

}  // namespace hopmix::cli

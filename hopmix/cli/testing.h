// For tests alone.
#pragma once

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

namespace hopmix::cli {

/// What the subcommand that `add` puts on an app prints, given its name and arguments. Passes on
/// what it throws.
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

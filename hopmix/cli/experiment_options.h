// Command-line options that select an experiment.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "hopmix/config/config.h"

namespace hopmix::cli {

/// Adds `--set key=value` (repeatable) to `command`.
inline void add_set_option(CLI::App& command, std::vector<std::string>& settings) {
  command
      .add_option("--set", settings,
                  "Override a key, as in --set train.steps=100 or --set model.blocks.0.pattern=2^k")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);  // it is not followed by a list, but maybe by a positional
}

/// The document at `path` (a file, or a run directory's config.toml) with `settings` applied.
toml::table load_document(const std::filesystem::path& path,
                          const std::vector<std::string>& settings);

}  // namespace hopmix::cli

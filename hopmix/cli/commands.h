// The subcommands of the program, one file each. An `add_X` puts its subcommand, options and
// callback on the app.
#pragma once

#include <CLI/CLI.hpp>

namespace hopmix::cli {

void add_pattern(CLI::App& app);
void add_compare(CLI::App& app);
void add_design(CLI::App& app);
void add_capacity(CLI::App& app);
void add_mixers(CLI::App& app);
void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_reproduce(CLI::App& app);
void add_bench(CLI::App& app);
void add_info(CLI::App& app);

/// Flushes standard output. Throws Error if the write fails, for example on a full disk.
void flush_output();

/// Parses the command line and runs it. Returns the exit code: 0, 1 (internal or system error), 2
/// (bad input) or 130 (interrupted).
int run(int argc, const char* const* argv);

}  // namespace hopmix::cli

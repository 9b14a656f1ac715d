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

/// Writes what was printed so far. Throws Error if it cannot be written: a full disk, say.
void flush_output();

/// Parses and runs. Returns the exit code: 0, 1 (a fault of ours or of the machine), 2 (bad input),
/// 130 (interrupted).
int run(int argc, const char* const* argv);

}  // namespace hopmix::cli

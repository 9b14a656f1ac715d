#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>

#include "hopmix/base/error.h"
#include "hopmix/base/nearest.h"
#include "hopmix/cli/commands.h"

namespace hopmix::cli {
namespace {

constexpr int kOurFault = 1, kBadInput = 2;

// Prints the message on one line, even if it quotes line breaks.
int complain(std::string message, int code) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fprintf(stderr, "hopmix: %s\n", message.c_str());
  return code;
}

// CLI11 reports a missing subcommand without checking whether a misspelled one was given.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> left = app.remaining();
  if (!app.get_subcommands().empty() || left.empty()) return error.what();
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
  return "unknown command '" + left[0] + "'" + suggestion(left[0], known);
}

// CLI11 clamps a number that overflows its type, and reads -1 as a huge unsigned number.
template <typename Integer>
std::string refuse_out_of_range(const std::string& text) {
  Integer value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return "";
  using Limits = std::numeric_limits<Integer>;
  return "is '" + text + "', but must be a whole number from " + std::to_string(Limits::min()) +
         " to " + std::to_string(Limits::max());
}

void check_integers(CLI::App& app) {
  for (CLI::Option* option : app.get_options({})) {
    const std::string type = option->get_type_name();
    if (type.starts_with("UINT")) {
      option->check(refuse_out_of_range<uint64_t>);
    } else if (type.starts_with("INT")) {
      option->check(refuse_out_of_range<int64_t>);
    }
  }
  for (CLI::App* command : app.get_subcommands({})) check_integers(*command);
}

}  // namespace

void flush_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw Error(std::string("cannot write to standard output: ") + std::strerror(errno));
}

int run(int argc, const char* const* argv) {
  CLI::App app{
      "Analyze, train and run causal token mixers: attention, recurrences and what lies between."};
  app.name("hopmix");
  app.require_subcommand(1);
  app.set_version_flag("--version", HOPMIX_VERSION);
  app.footer("`hopmix COMMAND --help` explains each command with examples.");
  add_pattern(app);
  add_compare(app);
  add_design(app);
  add_capacity(app);
  add_mixers(app);
  add_train(app);
  add_eval(app);
  add_generate(app);
  add_tokenizer(app);
  add_reproduce(app);
  add_bench(app);
  add_info(app);
  check_integers(app);
  try {
    app.parse(argc, argv);
    flush_output();
    return 0;
  } catch (const CLI::RuntimeError& end) {
    return end.get_exit_code();  // the command has already printed its message
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return complain(explain(app, error), kBadInput);
  } catch (const Error& error) {
    return complain(error.what(), kBadInput);
  } catch (const std::filesystem::filesystem_error& error) {
    return complain("'" + error.path1().string() + "': " + error.code().message(), kBadInput);
  } catch (const c10::ValueError& error) {
    return complain(error.what_without_backtrace(), kBadInput);
  } catch (const c10::Error& error) {
    return complain(error.what_without_backtrace(), kOurFault);
  } catch (const std::exception& error) {
    return complain(error.what(), kOurFault);
  }
}

}  // namespace hopmix::cli

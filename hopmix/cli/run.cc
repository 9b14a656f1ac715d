#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>

#include "hopmix/base/error.h"
#include "hopmix/base/nearest.h"
#include "hopmix/cli/commands.h"

namespace hopmix::cli {
namespace {

constexpr int kOurFault = 1, kBadInput = 2;

// The types of options that name a file or a folder.
const std::set<std::string> kNames = {"FILE", "DIR", "PATH", "RUN_DIR", "CONFIG.toml", "MODEL"};

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

// The command that was given, below all others.
const CLI::App& innermost(const CLI::App& app) {
  const std::vector<const CLI::App*> given =
      app.get_subcommands([](const CLI::App* command) { return command->parsed(); });
  return given.empty() ? app : innermost(*given.front());
}

// Libraries name an argument `top_p`; who gave an option calls it --top-p.
std::string with_dashes(const CLI::App& app, const std::string& message) {
  const size_t end = std::min(message.find_first_of(" :"), message.size());
  std::string name = message.substr(0, end);
  const std::string rest = message.substr(end);
  const bool names = rest.starts_with(": ") || rest.starts_with(" = ") ||
                     (rest.size() > 1 && std::strchr("-'0123456789", rest[1]) != nullptr);
  if (!names) return message;
  std::replace(name.begin(), name.end(), '_', '-');
  for (const CLI::Option* option : innermost(app).get_options()) {
    if (option->check_lname(name)) return "--" + name + rest;
    if (option->check_sname(name)) return "-" + name + rest;
  }
  return message;
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

// An unset shell variable gives an empty name.
std::string refuse_empty(const std::string& text) {
  return text.empty() ? "is '', but must name a file or a folder" : "";
}

void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options({})) {
    const std::string type = option->get_type_name();
    if (type.starts_with("UINT")) {
      option->check(refuse_out_of_range<uint64_t>);
    } else if (type.starts_with("INT")) {
      option->check(refuse_out_of_range<int64_t>);
    } else if (kNames.contains(type)) {
      option->check(refuse_empty);
    }
  }
  for (CLI::App* command : app.get_subcommands({})) check_values(*command);
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
  check_values(app);
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
    return complain(with_dashes(app, error.what()), kBadInput);
  } catch (const std::filesystem::filesystem_error& error) {
    return complain("'" + error.path1().string() + "': " + error.code().message(), kBadInput);
  } catch (const c10::ValueError& error) {
    return complain(error.what_without_backtrace(), kBadInput);
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    if (message.find("can't allocate memory") != std::string::npos) {
      return complain("out of memory: lower train.batch, task.length or the model's sizes",
                      kOurFault);
    }
    return complain(error.what_without_backtrace(), kOurFault);
  } catch (const std::exception& error) {
    return complain(error.what(), kOurFault);
  }
}

}  // namespace hopmix::cli

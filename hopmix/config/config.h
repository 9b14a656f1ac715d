// TOML configs: every key is read once by whoever owns it, defaults are written back, and a key
// that nobody read is an error with the nearest known name.
#pragma once

#include <toml++/toml.h>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hopmix/base/error.h"

namespace hopmix::config {

/// A view of one table of a document, with the dotted path that errors name. Reading a key with a
/// default stores the default, so that a document that was read can be written back as resolved.
/// The document must outlive the view.
class Table {
 public:
  explicit Table(toml::table& node, std::string path = "");

  /// Whether the document has `key`, which counts as asked for.
  bool has(std::string_view key);

  /// The value at `key`, or `fallback` (which is then stored). Throws Error on another type; an
  /// integer is taken where a double is asked for.
  std::string get(std::string_view key, std::string_view fallback);
  std::string get(std::string_view key, const char* fallback) {
    return get(key, std::string_view(fallback));
  }
  std::string get(std::string_view key, const std::string& fallback) {
    return get(key, std::string_view(fallback));
  }
  int64_t get(std::string_view key, int64_t fallback);
  int64_t get(std::string_view key, int fallback) { return get(key, int64_t{fallback}); }
  double get(std::string_view key, double fallback);
  bool get(std::string_view key, bool fallback);

  /// The string at `key`. Throws Error when the key is missing.
  std::string require(std::string_view key);

  /// The value at `key`, an integer of at least `least`.
  int64_t get_at_least(std::string_view key, int64_t fallback, int64_t least);
  /// The value at `key`, one of `choices`; else an error with the nearest one.
  std::string get_choice(std::string_view key, std::string_view fallback,
                         const std::vector<std::string>& choices);

  /// The sub-table at `key`, made empty if absent.
  Table table(std::string_view key);
  /// The array of tables at `key`; empty if absent.
  std::vector<Table> tables(std::string_view key);
  /// The same; `fallback`, tables too, if absent.
  std::vector<Table> tables(std::string_view key, const toml::array& fallback);
  /// The array of strings at `key`; empty if absent.
  std::vector<std::string> strings(std::string_view key);

  /// The array of integers at `key`, or `fallback` (which is then stored).
  std::vector<int64_t> integers(std::string_view key, const std::vector<int64_t>& fallback = {});

  /// Throws Error on the first key that nobody asked for, with the nearest one that somebody did.
  void finish() const;

  /// "model.blocks.0"; empty for the root.
  const std::string& path() const { return path_; }
  /// "model.blocks.0.heads" for key "heads".
  std::string name(std::string_view key) const;

  /// An Error "NAME = VALUE: RIGHT".
  Error bad(std::string_view key, std::string_view right) const;

  const toml::table& node() const { return *node_; }

 private:
  toml::node* find(std::string_view key);

  toml::table* node_;
  std::string path_;
  std::shared_ptr<std::vector<std::string>> asked_;
};

/// Parses TOML text; `source` names it in errors, which point at line and column.
toml::table parse(std::string_view text, const std::string& source);
toml::table parse_file(const std::filesystem::path& path);

/// Applies "a.b.0.c=value": tables are made on the way, a number indexes an array. The value is
/// read as TOML, and as a plain string where that fails, so that `pattern=cached(2^k)` needs no
/// quotes.
void set(toml::table& document, std::string_view assignment);

/// A string as TOML writes it, in one line: for messages.
std::string in_one_line(std::string_view text);

/// The document as TOML text, ending in a newline.
std::string to_string(const toml::table& document);

}  // namespace hopmix::config

// TOML configs. Each key is read once by its owner, defaults are written back, and an unread key is
// an error that suggests the nearest known name.
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

/// A view of one table of a document, with the dotted path used in errors. Reading a key with a
/// default stores the default, so that the resolved document can be written back. The document must
/// outlive the view.
class Table {
 public:
  explicit Table(toml::table& node, std::string path = "");

  /// Whether the document has `key`. Marks it as read.
  bool has(std::string_view key);

  /// The value at `key`, or `fallback`, which is then stored. Throws Error for a value of another
  /// type; an integer is accepted where a double is expected.
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

  /// The string at `key`. Throws Error if the key is missing.
  std::string require(std::string_view key);

  /// The value at `key`, an integer that must be at least `least`.
  int64_t get_at_least(std::string_view key, int64_t fallback, int64_t least);
  /// The same, and at most `most`.
  int64_t get_between(std::string_view key, int64_t fallback, int64_t least, int64_t most);
  /// The value at `key`, which must be one of `choices`; the error suggests the nearest one.
  std::string get_choice(std::string_view key, std::string_view fallback,
                         const std::vector<std::string>& choices);

  /// The subtable at `key`, created empty if absent.
  Table table(std::string_view key);
  /// The array of tables at `key`; empty if absent.
  std::vector<Table> tables(std::string_view key);
  /// The same, with `fallback`, also an array of tables, if absent.
  std::vector<Table> tables(std::string_view key, const toml::array& fallback);
  /// The array of strings at `key`; empty if absent.
  std::vector<std::string> strings(std::string_view key);

  /// The array of integers at `key`, or `fallback`, which is then stored.
  std::vector<int64_t> integers(std::string_view key, const std::vector<int64_t>& fallback = {});

  /// Throws Error for the first key that was never read, suggesting the nearest one that was.
  void finish() const;

  /// "model.blocks.0"; empty for the root.
  const std::string& path() const { return path_; }
  /// "model.blocks.0.heads" for key "heads".
  std::string name(std::string_view key) const;

  /// An Error that reads "NAME = VALUE: RIGHT".
  Error bad(std::string_view key, std::string_view right) const;

  const toml::table& node() const { return *node_; }

 private:
  toml::node* find(std::string_view key);

  toml::table* node_;
  std::string path_;
  std::shared_ptr<std::vector<std::string>> asked_;
};

/// Parses TOML text. Errors name `source`, the line and the column.
toml::table parse(std::string_view text, const std::string& source);
toml::table parse_file(const std::filesystem::path& path);

/// Applies "a.b.0.c=value". Creates missing tables; a number indexes an array. The value is parsed
/// as TOML, or taken as a plain string if that fails, so that `pattern=cached(2^k)` needs no
/// quotes.
void set(toml::table& document, std::string_view assignment);

/// A string as TOML on a single line, for messages.
std::string in_one_line(std::string_view text);

/// The document as TOML text, ending with a newline.
std::string to_string(const toml::table& document);

}  // namespace hopmix::config

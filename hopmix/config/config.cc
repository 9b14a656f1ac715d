#include "hopmix/config/config.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "hopmix/base/files.h"
#include "hopmix/base/nearest.h"

namespace hopmix::config {
namespace {

std::string text_of(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return out.str();
}

// Why `node` is not the string that a key needs; how to make it one.
std::string must_be_a_string(const toml::node& node, std::string_view name) {
  if (node.is_table() || node.is_array()) return "must be a string";
  const std::string key(name);
  return "must be a string: put it in quotes, " + key.substr(key.rfind('.') + 1) +
         " = \"...\", or in a shell, --set '" + key + "=\"...\"'";
}

bool has_line_end(const toml::node& node) {
  if (const toml::table* table = node.as_table()) {
    return std::any_of(table->begin(), table->end(),
                       [](const auto& item) { return has_line_end(item.second); });
  }
  if (const toml::array* array = node.as_array()) {
    return std::any_of(array->begin(), array->end(), has_line_end);
  }
  return node.is_string() && node.as_string()->get().find('\n') != std::string::npos;
}

// Escapes strings that contain line breaks: toml++ would write them as multi-line strings, which
// lose the first line break.
std::string escaped(const toml::node& node) {
  using toml::format_flags;
  format_flags flags =
      toml::toml_formatter::default_flags & ~format_flags::allow_multi_line_strings;
  if (has_line_end(node)) flags &= ~format_flags::allow_literal_strings;
  std::ostringstream out;
  out << toml::toml_formatter(node, flags);
  return out.str();
}

}  // namespace

std::string in_one_line(std::string_view text) { return escaped(toml::value<std::string>(text)); }

Table::Table(toml::table& node, std::string path)
    : node_(&node), path_(std::move(path)), asked_(std::make_shared<std::vector<std::string>>()) {}

bool Table::has(std::string_view key) { return find(key) != nullptr; }

std::string Table::name(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

Error Table::bad(std::string_view key, std::string_view right) const {
  const toml::node* node = node_->get(key);
  return Error(name(key) + (node ? " = " + text_of(*node) : " is missing") + ": " +
               std::string(right));
}

toml::node* Table::find(std::string_view key) {
  if (std::find(asked_->begin(), asked_->end(), key) == asked_->end()) asked_->emplace_back(key);
  return node_->get(key);
}

std::string Table::get(std::string_view key, std::string_view fallback) {
  toml::node* node = find(key);
  if (!node) {
    node_->insert(key, std::string(fallback));
    return std::string(fallback);
  }
  if (!node->is_string()) throw bad(key, must_be_a_string(*node, name(key)));
  return node->as_string()->get();
}

int64_t Table::get(std::string_view key, int64_t fallback) {
  toml::node* node = find(key);
  if (!node) {
    node_->insert(key, fallback);
    return fallback;
  }
  if (!node->is_integer()) throw bad(key, "must be an integer");
  return node->as_integer()->get();
}

double Table::get(std::string_view key, double fallback) {
  toml::node* node = find(key);
  if (!node) {
    node_->insert(key, fallback);
    return fallback;
  }
  if (!node->is_number()) throw bad(key, "must be a number");
  return *node->value<double>();
}

bool Table::get(std::string_view key, bool fallback) {
  toml::node* node = find(key);
  if (!node) {
    node_->insert(key, fallback);
    return fallback;
  }
  if (!node->is_boolean()) throw bad(key, "must be true or false");
  return node->as_boolean()->get();
}

std::string Table::require(std::string_view key) {
  if (!has(key)) {
    std::vector<std::string> present;
    for (const auto& [name, value] : *node_) present.emplace_back(name.str());
    const std::string near = nearest_name(key, present);
    throw bad(key, near.empty() ? "must be a string" : "is '" + near + "' a typo?");
  }
  return get(key, "");
}

int64_t Table::get_at_least(std::string_view key, int64_t fallback, int64_t least) {
  const int64_t value = get(key, fallback);
  if (value < least) throw bad(key, "must be at least " + std::to_string(least));
  return value;
}

int64_t Table::get_between(std::string_view key, int64_t fallback, int64_t least, int64_t most) {
  const int64_t value = get_at_least(key, fallback, least);
  if (value > most) throw bad(key, "must be at most " + std::to_string(most));
  return value;
}

std::string Table::get_choice(std::string_view key, std::string_view fallback,
                              const std::vector<std::string>& choices) {
  const std::string value = get(key, fallback);
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
    std::string list;
    for (const std::string& choice : choices) list += (list.empty() ? "" : ", ") + choice;
    const std::string near = nearest_name(value, choices);
    throw bad(key, "must be one of " + list + (near.empty() ? "" : suggestion(value, choices)));
  }
  return value;
}

Table Table::table(std::string_view key) {
  if (!find(key)) node_->insert(key, toml::table{});
  toml::table* child = node_->get(key)->as_table();
  if (!child) throw bad(key, "must be a table");
  return Table(*child, name(key));
}

std::vector<Table> Table::tables(std::string_view key) {
  std::vector<Table> result;
  toml::node* node = find(key);
  if (!node) return result;
  if (!node->is_array()) throw bad(key, "must be an array of tables");
  int64_t index = 0;
  for (toml::node& element : *node->as_array()) {
    if (!element.is_table()) throw bad(key, "must be an array of tables");
    result.emplace_back(*element.as_table(), name(key) + "." + std::to_string(index++));
  }
  return result;
}

std::vector<Table> Table::tables(std::string_view key, const toml::array& fallback) {
  if (!node_->contains(key)) node_->insert(key, fallback);
  return tables(key);
}

std::vector<std::string> Table::strings(std::string_view key) {
  std::vector<std::string> result;
  toml::node* node = find(key);
  if (!node) return result;
  if (!node->is_array()) throw bad(key, "must be an array of strings");
  for (toml::node& element : *node->as_array()) {
    if (!element.is_string()) throw bad(key, "must be an array of strings");
    result.push_back(element.as_string()->get());
  }
  return result;
}

std::vector<int64_t> Table::integers(std::string_view key, const std::vector<int64_t>& fallback) {
  toml::node* node = find(key);
  if (!node) {
    toml::array stored;
    for (const int64_t value : fallback) stored.push_back(value);
    node_->insert_or_assign(key, std::move(stored));
    return fallback;
  }
  if (!node->is_array()) throw bad(key, "must be an array of integers");
  std::vector<int64_t> result;
  for (toml::node& element : *node->as_array()) {
    if (!element.is_integer()) throw bad(key, "must be an array of integers");
    result.push_back(element.as_integer()->get());
  }
  return result;
}

void Table::finish() const {
  for (const auto& [key, value] : *node_) {
    const std::string_view text = key.str();
    if (std::find(asked_->begin(), asked_->end(), text) == asked_->end()) {
      throw Error("unknown key '" + name(text) + "'" + suggestion(text, *asked_));
    }
  }
}

toml::table parse(std::string_view text, const std::string& source) {
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    std::ostringstream place;
    place << source << ":" << error.source().begin.line << ":" << error.source().begin.column;
    throw Error(place.str() + ": not TOML: " + std::string(error.description()));
  }
}

toml::table parse_file(const std::filesystem::path& path) {
  return parse(read_file(path), path.string());
}

void set(toml::table& document, std::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw Error("--set " + std::string(assignment) +
                ": must have the form key=value, such as train.steps=100");
  }
  const std::string path(assignment.substr(0, equals));
  const std::string text(assignment.substr(equals + 1));

  std::vector<std::string> keys;
  std::istringstream split(path);
  for (std::string key; std::getline(split, key, '.');) keys.push_back(key);

  toml::node* at = &document;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool last = i + 1 == keys.size();
    toml::table value;
    if (last) {
      try {
        value = toml::parse("v = " + text);
        if (value.size() != 1) throw Error("");
      } catch (const std::exception&) {
        value = toml::table{{"v", text}};
      }
    }
    if (toml::table* table = at->as_table()) {
      if (last) {
        table->insert_or_assign(keys[i], std::move(*value.get("v")));
        return;
      }
      if (!table->contains(keys[i])) table->insert(keys[i], toml::table{});
      at = table->get(keys[i]);
    } else if (toml::array* array = at->as_array()) {
      size_t index = 0;
      const char* end = keys[i].data() + keys[i].size();
      const auto parsed = std::from_chars(keys[i].data(), end, index);
      if (parsed.ec != std::errc() || parsed.ptr != end || index >= array->size()) {
        throw Error("--set " + std::string(assignment) + ": '" + keys[i] +
                    "' must be an index from 0 to " + std::to_string(array->size()) +
                    " (exclusive)");
      }
      if (last) {
        array->replace(array->cbegin() + static_cast<int64_t>(index), std::move(*value.get("v")));
        return;
      }
      at = array->get(index);
    } else {
      throw Error("--set " + std::string(assignment) + ": '" + keys[i - 1] +
                  "' holds a value, not a table");
    }
  }
}

std::string to_string(const toml::table& document) { return escaped(document) + "\n"; }

}  // namespace hopmix::config

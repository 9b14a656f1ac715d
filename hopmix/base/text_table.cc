#include "hopmix/base/text_table.h"

#include <algorithm>
#include <cstdio>

namespace hopmix {
namespace {

// The number of characters, not bytes, of UTF-8 text.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string text_table(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows,
                       const std::vector<bool>& left) {
  std::vector<size_t> widths;
  for (const std::string& cell : head) widths.push_back(width_of(cell));
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - width_of(row[c]), ' ');
      const bool to_left = c < left.size() ? left[c] : c == 0;
      line += (c > 0 ? "  " : "") + (to_left ? row[c] + space : space + row[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add(head);
  for (const auto& row : rows) add(row);
  return text;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace hopmix

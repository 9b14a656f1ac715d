#include "hopmix/pattern/matrix_market.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>
#include <string_view>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"
#include "hopmix/base/memory_size.h"

namespace hopmix {
namespace {

constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;

struct Entry {
  int64_t row, col, line;
};

// Reads the lines of a file; errors name the line.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), text_(read_file(path)) {}

  [[noreturn]] void fail(int64_t line, const std::string& message) const {
    throw Error(path_.string() + ":" + std::to_string(line) + ": " + message);
  }
  [[noreturn]] void fail(const std::string& message) const { fail(line_, message); }

  /// The next line, or false at the end.
  bool next(std::string_view& line) {
    if (at_ >= text_.size()) return false;
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    line = std::string_view(text_).substr(at_, end - at_);
    if (line.ends_with('\r')) line.remove_suffix(1);
    at_ = end + 1;
    ++line_;
    return true;
  }

  /// The next line that is neither blank nor a comment.
  bool next_data(std::string_view& line) {
    while (next(line)) {
      const size_t first = line.find_first_not_of(" \t");
      if (first != std::string_view::npos && line[first] != '%') return true;
    }
    return false;
  }

  int64_t line() const { return line_; }

 private:
  std::filesystem::path path_;
  std::string text_;
  size_t at_ = 0;
  int64_t line_ = 0;
};

// Removes the next word from `line`; empty if none is left.
std::string_view take_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(" \t"));
  line.remove_prefix(word.size());
  return word;
}

std::string lower(std::string_view word) {
  std::string text(word);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

int64_t take_integer(const Reader& reader, std::string_view& line, const char* name) {
  const std::string_view word = take_word(line);
  if (word.empty()) reader.fail(std::string(name) + " is missing");
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) {
    reader.fail(std::string(name) + " '" + std::string(word) + "' must be a whole number");
  }
  return value;
}

void read_header(Reader& reader) {
  std::string_view line;
  if (!reader.next(line))
    reader.fail(
        1,
        "the file is empty; it must begin with '%%MatrixMarket matrix coordinate pattern general'");
  if (lower(take_word(line)) != "%%matrixmarket" || lower(take_word(line)) != "matrix") {
    reader.fail("the file must begin with '%%MatrixMarket matrix coordinate pattern general'");
  }
  if (const std::string format = lower(take_word(line)); format != "coordinate") {
    reader.fail("format '" + format + "' must be coordinate");
  }
  if (const std::string field = lower(take_word(line));
      field != "pattern" && field != "real" && field != "integer") {
    reader.fail("field '" + field + "' must be pattern, real or integer");
  }
  if (const std::string symmetry = lower(take_word(line)); symmetry != "general") {
    reader.fail("symmetry '" + symmetry + "' must be general");
  }
}

std::vector<Entry> read_entries(Reader& reader, int64_t n, int64_t count) {
  std::vector<Entry> entries;
  std::string_view line;
  while (reader.next_data(line)) {
    const int64_t row = take_integer(reader, line, "row"),
                  col = take_integer(reader, line, "column");
    const std::string entry = "entry (" + std::to_string(row) + ", " + std::to_string(col) + ")";
    if (std::min(row, col) < 1 || std::max(row, col) > n) {
      reader.fail(entry + " must lie within 1.." + std::to_string(n));
    }
    if (col >= row)
      reader.fail(entry + " must lie below the diagonal: tokens read only earlier tokens");
    if (static_cast<int64_t>(entries.size()) == count) {
      reader.fail(entry + " exceeds the announced " + std::to_string(count) + " entries");
    }
    entries.push_back({row - 1, col - 1, reader.line()});
  }
  if (static_cast<int64_t>(entries.size()) != count) {
    reader.fail("the file ends after " + std::to_string(entries.size()) + " of " +
                std::to_string(count) + " entries");
  }
  return entries;
}

}  // namespace

Csr read_matrix_market(const std::filesystem::path& path) {
  Reader reader(path);
  read_header(reader);
  std::string_view line;
  if (!reader.next_data(line)) reader.fail("the line 'rows columns entries' is missing");
  const int64_t rows = take_integer(reader, line, "rows"),
                cols = take_integer(reader, line, "columns"),
                count = take_integer(reader, line, "entries");
  if (rows < 0 || rows > kMaxRows)
    reader.fail("rows " + std::to_string(rows) + " must be from 0 to " + std::to_string(kMaxRows));
  constexpr int64_t kBytesOfRow = sizeof(int64_t);
  if (rows > memory_size() / kBytesOfRow) {
    reader.fail("rows " + std::to_string(rows) + " need " + format_bytes(rows * kBytesOfRow) +
                ", more than the memory of this machine, " + format_bytes(memory_size()));
  }
  if (rows != cols) {
    reader.fail("a matrix of " + std::to_string(rows) + " by " + std::to_string(cols) +
                " must be square");
  }
  if (count < 0) reader.fail("entries " + std::to_string(count) + " must be at least 0");

  std::vector<Entry> entries = read_entries(reader, rows, count);
  // Stable, so that the error for a duplicate entry names the later line.
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.row != b.row ? a.row < b.row : a.col < b.col;
  });
  Csr csr;
  csr.row_ptr.assign(rows + 1, 0);
  csr.cols.reserve(entries.size());
  for (size_t e = 0; e < entries.size(); ++e) {
    const auto& [row, col, at] = entries[e];
    if (e > 0 && entries[e - 1].row == row && entries[e - 1].col == col) {
      reader.fail(at, "entry (" + std::to_string(row + 1) + ", " + std::to_string(col + 1) +
                          ") is given twice");
    }
    csr.cols.push_back(static_cast<int32_t>(col));
    ++csr.row_ptr[row + 1];
  }
  for (int64_t i = 0; i < rows; ++i) csr.row_ptr[i + 1] += csr.row_ptr[i];
  return csr;
}

void write_matrix_market(const std::filesystem::path& path, const Csr& pattern) {
  write_file(path, [&](const Sink& sink) {
    constexpr size_t kPiece = 1 << 16;
    const std::string n = std::to_string(pattern.rows());
    std::string text =
        "%%MatrixMarket matrix coordinate pattern general\n% token (row) reads token (column), "
        "from 1\n" +
        n + " " + n + " " + std::to_string(pattern.cols.size()) + "\n";
    for (int64_t i = 0; i < pattern.rows(); ++i) {
      for (int64_t e = pattern.row_ptr[i]; e < pattern.row_ptr[i + 1]; ++e) {
        text += std::to_string(i + 1) + " " + std::to_string(int64_t{pattern.cols[e]} + 1) + "\n";
        if (text.size() < kPiece) continue;
        sink(text.data(), text.size());
        text.clear();
      }
    }
    sink(text.data(), text.size());
  });
}

}  // namespace hopmix

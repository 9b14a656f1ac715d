#include "hopmix/text/documents.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"
#include "hopmix/base/mix_bits.h"

namespace hopmix::text {
namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::string_view bytes_of(const MappedFile& file, const Document& document) {
  return file.bytes().substr(document.begin, document.size());
}

// The best place to cut `text` near byte `at`.
size_t cut_near(std::string_view text, size_t at, std::string_view separator = "\n") {
  for (const std::string_view mark : {separator, std::string_view("\n")}) {
    const size_t found = text.find(mark, at), end = found + mark.size();
    if (found != std::string_view::npos && end < text.size()) return end;
  }
  const auto inside = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
  while (at < text.size() && inside(text[at])) ++at;
  return at;
}

// ---- The cache of subword tokens: a header, then the tokens

struct Header {
  explicit Header(bool parts) : magic{'h', 'o', 'p', 'm', 'i', 'x', parts ? 'P' : 'T', '1'} {}

  char magic[8];
  int64_t width = 0;  // bytes per token
};
// With parts, the tokens are followed by the end of each part and then their number, as int64.

uint64_t hash(std::string_view bytes, uint64_t h) {
  for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), sizeof h))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), std::min(bytes.size(), sizeof word));
    h = mix_bits((h ^ word) + kGoldenStep);
  }
  return mix_bits(h + kGoldenStep);
}

fs::path entry_of(const Document& document, const Tokenizer& tokenizer, const fs::path& cache,
                  std::string_view separator) {
  const fs::path file = fs::canonical(document.file);
  const auto changed = fs::last_write_time(file).time_since_epoch().count();
  uint64_t h = hash(file.string(), 0);
  for (const auto number : {static_cast<uint64_t>(changed), uint64_t{fs::file_size(file)},
                            uint64_t{document.begin}, uint64_t{document.end}}) {
    h = mix_bits((h ^ number) + kGoldenStep);
  }
  if (!separator.empty()) h = hash(separator, h);
  char name[32];
  std::snprintf(name, sizeof name, "-%016llx.tokens",
                static_cast<unsigned long long>(hash(tokenizer.model(), h)));
  return cache / (file.stem().string() + name);
}

// Removes a value from the end of `bytes` and returns it; nothing if they are too short.
std::vector<int64_t> take_last(std::string_view& bytes, size_t count) {
  if (bytes.size() / sizeof(int64_t) < count) return {};
  std::vector<int64_t> numbers(count);
  bytes.remove_suffix(count * sizeof(int64_t));
  std::memcpy(numbers.data(), bytes.data() + bytes.size(), count * sizeof(int64_t));
  return numbers;
}

// The tokens in `entry`, if it is a valid cache file.
std::optional<Tokens> read_entry(const fs::path& entry, bool parts) {
  if (!fs::exists(entry)) return std::nullopt;
  const MappedFile file(entry);
  std::string_view rest = file.bytes();
  Header header(parts);
  if (rest.size() < sizeof header || std::memcmp(rest.data(), header.magic, 8) != 0) return {};
  std::memcpy(&header, rest.data(), sizeof header);
  rest.remove_prefix(sizeof header);
  std::vector<int64_t> ends;
  if (parts) {
    const std::vector<int64_t> count = take_last(rest, 1);
    if (count.empty() || count[0] < 1) return {};
    ends = take_last(rest, static_cast<size_t>(count[0]));
    if (ends.empty()) return {};
  }
  if (header.width != 2 && header.width != 4) return {};
  const auto bytes = static_cast<int64_t>(rest.size()), size = bytes / header.width;
  if (!parts) ends = {size};
  if (bytes % header.width != 0 || ends.back() != size) return {};
  return Tokens(file, sizeof header, static_cast<int>(header.width), size, std::move(ends));
}

template <typename Int>
void write_tokens(const std::vector<int64_t>& tokens, const Sink& sink) {
  const std::vector<Int> narrow(tokens.begin(), tokens.end());
  sink(narrow.data(), narrow.size() * sizeof(Int));
}

// Encodes text in pieces that end at a line, so that memory stays bounded.
void make_entry(const Document& document, const Tokenizer& tokenizer, const fs::path& entry,
                std::string_view separator) {
  constexpr size_t kPiece = size_t{1} << 20;
  const MappedFile file(document.file);
  const std::string_view text = bytes_of(file, document);
  Header header(!separator.empty());
  header.width = tokenizer.vocabulary() <= (1 << 16) ? 2 : 4;
  // Processes that make the same entry concurrently write separate files; the last rename wins.
  static std::atomic<int> count = 0;
  const fs::path made =
      entry.string() + "." + std::to_string(::getpid()) + "." + std::to_string(count++);
  write_file(made, [&](const Sink& sink) {
    sink(&header, sizeof header);
    std::vector<int64_t> ends;
    int64_t size = 0;
    size_t begin = 0;
    for (const size_t part_end : part_ends(text, separator)) {
      std::string_view rest = text.substr(begin, part_end - begin);
      while (!rest.empty()) {
        const size_t end = rest.size() <= kPiece ? rest.size() : cut_near(rest, kPiece);
        const std::vector<int64_t> tokens = tokenizer.encode(rest.substr(0, end));
        header.width == 2 ? write_tokens<uint16_t>(tokens, sink)
                          : write_tokens<uint32_t>(tokens, sink);
        size += static_cast<int64_t>(tokens.size());
        rest.remove_prefix(end);
      }
      ends.push_back(size);
      begin = part_end;
    }
    if (separator.empty()) return;
    ends.push_back(static_cast<int64_t>(ends.size()));
    sink(ends.data(), ends.size() * sizeof(int64_t));
  });
  fs::rename(made, entry);
}

template <typename Int>
void widen(const char* from, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Int token;
    std::memcpy(&token, from + i * sizeof token, sizeof token);
    out[i] = token;
  }
}

}  // namespace

std::vector<Document> list_documents(const fs::path& path, const std::string& where) {
  const std::string named = where + " = '" + path.string() + "': ";
  if (!fs::exists(path))
    throw Error(named + "must be a file or folder of text, but does not exist");
  std::vector<Document> documents;
  if (!fs::is_directory(path)) {
    documents.push_back({path, 0, MappedFile(path).bytes().size()});
  } else {
    for (auto entry = fs::recursive_directory_iterator(path); entry != fs::end(entry); ++entry) {
      if (hidden(entry->path())) {
        entry.disable_recursion_pending();
      } else if (entry->is_regular_file()) {
        documents.push_back({entry->path(), 0, static_cast<size_t>(entry->file_size())});
      }
    }
  }
  std::erase_if(documents, [](const Document& document) { return document.size() == 0; });
  if (documents.empty()) throw Error(named + "must contain text, but is empty");
  std::sort(documents.begin(), documents.end(),
            [](const Document& a, const Document& b) { return a.file < b.file; });
  return documents;
}

size_t total_size(const std::vector<Document>& documents) {
  size_t total = 0;
  for (const Document& document : documents) total += document.size();
  return total;
}

std::vector<size_t> part_ends(std::string_view text, std::string_view separator) {
  std::vector<size_t> ends;
  size_t begin = 0, at = separator.empty() ? std::string_view::npos : text.find(separator);
  while (at != std::string_view::npos) {
    size_t end = at + separator.size();
    while (text.substr(end).starts_with(separator)) end += separator.size();
    if (at > begin) ends.push_back(begin = end);
    at = text.find(separator, end);
  }
  if (ends.empty() || ends.back() < text.size()) ends.push_back(text.size());
  return ends;
}

std::pair<std::vector<Document>, std::vector<Document>> hold_out(
    const std::vector<Document>& documents, double fraction, std::string_view separator) {
  if (documents.size() == 1) {
    const Document& whole = documents[0];
    const MappedFile file(whole.file);
    const double kept = static_cast<double>(whole.size()) * (1 - fraction);
    const size_t cut =
        whole.begin + cut_near(bytes_of(file, whole), static_cast<size_t>(kept), separator);
    return {{{whole.file, whole.begin, cut}}, {{whole.file, cut, whole.end}}};
  }
  const double wanted = static_cast<double>(total_size(documents)) * fraction;
  auto first = documents.end();
  double held = 0;
  while (first == documents.end() || (held < wanted && first != documents.begin() + 1)) {
    held += static_cast<double>((--first)->size());
  }
  return {{documents.begin(), first}, {first, documents.end()}};
}

void Tokens::copy(int64_t begin, std::span<int64_t> out) const {
  const char* from =
      file_.bytes().data() + offset_ + static_cast<size_t>(begin) * static_cast<size_t>(width_);
  if (width_ == 1) widen<uint8_t>(from, out);
  if (width_ == 2) widen<uint16_t>(from, out);
  if (width_ == 4) widen<uint32_t>(from, out);
}

Tokens open_tokens(const Document& document, const Tokenizer& tokenizer, const fs::path& cache,
                   std::string_view separator) {
  if (tokenizer.is_bytes()) {
    const MappedFile file(document.file);
    const std::vector<size_t> ends = part_ends(bytes_of(file, document), separator);
    return Tokens(file, document.begin, 1, static_cast<int64_t>(document.size()),
                  {ends.begin(), ends.end()});
  }
  const fs::path entry = entry_of(document, tokenizer, cache, separator);
  std::error_code error;
  fs::create_directories(cache, error);
  if (error) throw Error("cannot create '" + cache.string() + "': " + error.message());
  const bool parts = !separator.empty();
  std::optional<Tokens> tokens = read_entry(entry, parts);
  if (!tokens) {
    make_entry(document, tokenizer, entry, separator);
    tokens = read_entry(entry, parts);
  }
  if (!tokens) throw Error("cannot read '" + entry.string() + "': it holds no tokens");
  return *std::move(tokens);
}

fs::path default_cache() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) {
    return fs::path(cache) / "hopmix";
  }
  if (const char* home = std::getenv("HOME"); home && *home) {
    return fs::path(home) / ".cache" / "hopmix";
  }
  return fs::temp_directory_path() / "hopmix";
}

}  // namespace hopmix::text

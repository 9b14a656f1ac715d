#include "hopmix/text/documents.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"

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

// ---- The cache of subword tokens: a header, the tokens, the end of each part, a footer

constexpr const char* kEnding = ".tokens";

struct Header {
  char magic[8] = {'h', 'o', 'p', 'm', 'i', 'x', 'T', '2'};
  int64_t width = 0;  // bytes per token
};

struct Footer {
  int64_t tokens = 0, parts = 0;
  uint64_t hash = 0;  // of all before the footer
};

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

fs::path entry_of(const Document& document, std::string_view text, const Tokenizer& tokenizer,
                  const fs::path& cache, std::string_view separator) {
  ContentHash hash;
  for (const std::string_view part : {std::string_view(tokenizer.model()), separator, text}) {
    hash.add(bytes_of(part.size()));
    hash.add(part);
  }
  return cache / (document.file.stem().string() + "-" + hex(hash.value()) + kEnding);
}

// The tokens in `entry`, if it is a whole cache file.
std::optional<Tokens> read_entry(const fs::path& entry) {
  if (!fs::exists(entry)) return std::nullopt;
  const MappedFile file(entry);
  const std::string_view bytes = file.bytes();
  Header header;
  Footer footer;
  if (bytes.size() < sizeof header + sizeof footer) return {};
  if (!bytes.starts_with(std::string_view(header.magic, sizeof header.magic))) return {};
  const std::string_view content = bytes.substr(0, bytes.size() - sizeof footer);
  std::memcpy(&header, bytes.data(), sizeof header);
  std::memcpy(&footer, bytes.data() + content.size(), sizeof footer);
  const auto all = static_cast<int64_t>(content.size() - sizeof header);
  const bool sizes = (header.width == 2 || header.width == 4) && footer.parts > 0 &&
                     footer.parts <= all / static_cast<int64_t>(sizeof(int64_t)) &&
                     footer.tokens >= 0 && footer.tokens <= all / header.width;
  if (!sizes) return {};
  const int64_t tokens = footer.tokens * header.width;
  std::vector<int64_t> ends(static_cast<size_t>(footer.parts));
  if (tokens + static_cast<int64_t>(ends.size() * sizeof(int64_t)) != all) return {};
  ContentHash hash;
  hash.add(content);
  if (hash.value() != footer.hash) return {};
  std::memcpy(ends.data(), content.data() + sizeof header + tokens, ends.size() * sizeof(int64_t));
  return Tokens(file, sizeof header, static_cast<int>(header.width), footer.tokens,
                std::move(ends));
}

template <typename Int>
void write_tokens(const std::vector<int64_t>& tokens, const Sink& sink) {
  const std::vector<Int> narrow(tokens.begin(), tokens.end());
  sink(narrow.data(), narrow.size() * sizeof(Int));
}

// Encodes text in pieces that end at a line, so that memory stays bounded.
void make_entry(std::string_view text, const Tokenizer& tokenizer, const fs::path& entry,
                std::string_view separator) {
  constexpr size_t kPiece = size_t{1} << 20;
  Header header;
  header.width = tokenizer.vocabulary() <= (1 << 16) ? 2 : 4;
  write_file(entry, [&](const Sink& file) {
    ContentHash hash;
    const Sink sink = [&](const void* data, size_t size) {
      hash.add({static_cast<const char*>(data), size});
      file(data, size);
    };
    sink(&header, sizeof header);
    std::vector<int64_t> ends;
    Footer footer;
    size_t begin = 0;
    for (const size_t part_end : part_ends(text, separator)) {
      std::string_view rest = text.substr(begin, part_end - begin);
      while (!rest.empty()) {
        const size_t end = rest.size() <= kPiece ? rest.size() : cut_near(rest, kPiece);
        const std::vector<int64_t> tokens = tokenizer.encode(rest.substr(0, end));
        header.width == 2 ? write_tokens<uint16_t>(tokens, sink)
                          : write_tokens<uint32_t>(tokens, sink);
        footer.tokens += static_cast<int64_t>(tokens.size());
        rest.remove_prefix(end);
      }
      ends.push_back(footer.tokens);
      begin = part_end;
    }
    sink(ends.data(), ends.size() * sizeof(int64_t));
    footer.parts = static_cast<int64_t>(ends.size());
    footer.hash = hash.value();
    file(&footer, sizeof footer);
  });
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

Digest digest(const std::vector<Document>& documents, const fs::path& path) {
  ContentHash hash;
  Digest result;
  for (const Document& document : documents) {
    const MappedFile file(document.file);
    const std::string name = document.file.lexically_relative(path).string();
    hash.add(name);
    hash.add(bytes_of(name.size()));
    hash.add(bytes_of(file, document));
    hash.add(bytes_of(document.size()));
    result.bytes += static_cast<int64_t>(document.size());
  }
  result.hash = hash.value();
  return result;
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
  const MappedFile file(document.file);
  const std::string_view text = bytes_of(file, document);
  if (tokenizer.is_bytes()) {
    const std::vector<size_t> ends = part_ends(text, separator);
    return Tokens(file, document.begin, 1, static_cast<int64_t>(document.size()),
                  {ends.begin(), ends.end()});
  }
  const fs::path entry = entry_of(document, text, tokenizer, cache, separator);
  std::error_code error;
  fs::create_directories(cache, error);
  if (error) throw Error("cannot create '" + cache.string() + "': " + error.message());
  std::optional<Tokens> tokens = read_entry(entry);
  if (!tokens) {
    remove_abandoned(cache, kEnding);
    make_entry(text, tokenizer, entry, separator);
    tokens = read_entry(entry);
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

// The files of a text, and their tokens, memory-mapped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hopmix/base/content_hash.h"
#include "hopmix/base/mapped_file.h"
#include "hopmix/text/tokenizer.h"

namespace hopmix::text {

/// Bytes begin .. end-1 of a file.
struct Document {
  std::filesystem::path file;
  size_t begin = 0, end = 0;

  size_t size() const { return end - begin; }
};

/// A file as one document, or every file in a folder as one document each, in the order of their
/// paths. Skips hidden and empty files. Throws Error, naming `where`, if nothing is left.
std::vector<Document> list_documents(const std::filesystem::path& path, const std::string& where);

/// Of all documents, in order, their names below `path` and their bytes.
Digest digest(const std::vector<Document>& documents, const std::filesystem::path& path);

size_t total_size(const std::vector<Document>& documents);

/// The ends of the parts of `text`, each right after a `separator` (or several in a row); the last
/// part ends with the text. No part consists of separators only, unless all of the text does.
/// Without a separator the text is one part.
std::vector<size_t> part_ends(std::string_view text, std::string_view separator);

/// Splits off `fraction` of the bytes: {the first documents, the last}. Several documents are split
/// between documents, with at least one on each side; a single one is cut after a `separator`, else
/// after a line, else after a character.
std::pair<std::vector<Document>, std::vector<Document>> hold_out(
    const std::vector<Document>& documents, double fraction, std::string_view separator = "\n");

/// The tokens of a document, read from a mapped file; for bytes, the document itself. Copies share
/// the mapping.
class Tokens {
 public:
  /// `size` integers of `width` bytes (1, 2 or 4), starting at byte `offset` of `file`, in parts
  /// that end at `ends`.
  Tokens(MappedFile file, size_t offset, int width, int64_t size, std::vector<int64_t> ends)
      : file_(std::move(file)),
        offset_(offset),
        width_(width),
        size_(size),
        ends_(std::move(ends)) {}

  int64_t size() const { return size_; }

  /// The ends of the parts into which a separator divides the document; the last is size().
  const std::vector<int64_t>& ends() const { return ends_; }

  /// Fills `out` with the tokens from `begin` on.
  void copy(int64_t begin, std::span<int64_t> out) const;

 private:
  MappedFile file_;
  size_t offset_;
  int width_;
  int64_t size_;
  std::vector<int64_t> ends_;
};

/// Encodes subword tokens once and keeps them in the folder `cache`; another content, model or
/// separator gets another entry, and a damaged entry is made again. No token crosses from one part
/// (part_ends) into the next. Throws Error if the cache cannot be written.
Tokens open_tokens(const Document& document, const Tokenizer& tokenizer,
                   const std::filesystem::path& cache, std::string_view separator = "");

/// The default folder for tokens: hopmix/ in $XDG_CACHE_HOME, else in ~/.cache.
std::filesystem::path default_cache();

}  // namespace hopmix::text

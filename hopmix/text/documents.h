// The files that a text is made of, and their tokens where they lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hopmix/base/mapped_file.h"
#include "hopmix/text/tokenizer.h"

namespace hopmix::text {

/// Bytes begin .. end-1 of a file.
struct Document {
  std::filesystem::path file;
  size_t begin = 0, end = 0;

  size_t size() const { return end - begin; }
};

/// A file as one document, or every file below a folder as one each, in the order of their paths;
/// those with a name that begins with a dot, and empty ones, are left out. Throws Error, naming
/// `where`, if nothing is left.
std::vector<Document> list_documents(const std::filesystem::path& path, const std::string& where);

size_t total_size(const std::vector<Document>& documents);

/// Where the parts of `text` end, each right behind a `separator`, or several in a row; the last at
/// the end of the text. No part is separators alone, unless all of it is. Without a separator the
/// text is one part.
std::vector<size_t> part_ends(std::string_view text, std::string_view separator);

/// Sets `fraction` of the bytes aside: {the first documents, the last}. Whole documents while there
/// are several, at least one; a single one is cut behind a `separator`, else at a line, else at the
/// end of a character.
std::pair<std::vector<Document>, std::vector<Document>> hold_out(
    const std::vector<Document>& documents, double fraction, std::string_view separator = "\n");

/// The tokens of a document, read from a mapped file: of bytes, the document itself. A value.
class Tokens {
 public:
  /// `size` integers of `width` bytes (1, 2 or 4), from byte `offset` of `file` on, in parts that
  /// end at `ends`.
  Tokens(MappedFile file, size_t offset, int width, int64_t size, std::vector<int64_t> ends)
      : file_(std::move(file)),
        offset_(offset),
        width_(width),
        size_(size),
        ends_(std::move(ends)) {}

  int64_t size() const { return size_; }

  /// Where the parts that a separator divides the document into end; the last is size().
  const std::vector<int64_t>& ends() const { return ends_; }

  /// Tokens `begin` and after, as many as `out` has.
  void copy(int64_t begin, std::span<int64_t> out) const;

 private:
  MappedFile file_;
  size_t offset_;
  int width_;
  int64_t size_;
  std::vector<int64_t> ends_;
};

/// Subword tokens are made once and kept in the folder `cache`; a text or a model that changed is
/// another entry. No token reaches from one part (part_ends) into the next. Throws Error if the
/// cache cannot be written.
Tokens open_tokens(const Document& document, const Tokenizer& tokenizer,
                   const std::filesystem::path& cache, std::string_view separator = "");

/// Where tokens are kept unless told: hopmix/ in $XDG_CACHE_HOME, else in ~/.cache.
std::filesystem::path default_cache();

}  // namespace hopmix::text

// The files that a text is made of, and their tokens where they lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
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

/// Sets `fraction` of the bytes aside: {the first documents, the last}. Whole documents while there
/// are several, at least one; a single one is cut at a line, at the end of a character if it has
/// none.
std::pair<std::vector<Document>, std::vector<Document>> hold_out(
    const std::vector<Document>& documents, double fraction);

/// The tokens of a document, read from a mapped file: of bytes, the document itself. A value.
class Tokens {
 public:
  /// `size` integers of `width` bytes (1, 2 or 4), from byte `offset` of `file` on.
  Tokens(MappedFile file, size_t offset, int width, int64_t size)
      : file_(std::move(file)), offset_(offset), width_(width), size_(size) {}

  int64_t size() const { return size_; }

  /// Tokens `begin` and after, as many as `out` has.
  void copy(int64_t begin, std::span<int64_t> out) const;

 private:
  MappedFile file_;
  size_t offset_;
  int width_;
  int64_t size_;
};

/// Subword tokens are made once and kept in the folder `cache`; a text or a model that changed is
/// another entry. Throws Error if the cache cannot be written.
Tokens open_tokens(const Document& document, const Tokenizer& tokenizer,
                   const std::filesystem::path& cache);

/// Where tokens are kept unless told: hopmix/ in $XDG_CACHE_HOME, else in ~/.cache.
std::filesystem::path default_cache();

}  // namespace hopmix::text

// Which past tokens a token may read: the pattern grammar (docs/patterns.md), bound to a sequence
// length.
//
// Positions are 0-based here and everywhere in hopmix. The first paper counts from 1; the only
// place that converts is cached_row() in rows.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hopmix {

/// A pattern written out: row i is cols[row_ptr[i] .. row_ptr[i+1]), ascending, all below i.
struct Csr {
  std::vector<int64_t> row_ptr;  // [n + 1]
  std::vector<int32_t> cols;     // [nnz]
  int64_t rows() const { return static_cast<int64_t>(row_ptr.size()) - 1; }
};

/// A causal pattern on `size()` tokens: row i lists the tokens j < i that token i may read (never i
/// itself). Copies share one immutable description, and every member function is thread-safe.
class Pattern {
 public:
  /// Parses `spec` and checks it on n tokens, 0 <= n < 2^31. Throws Error that points at the
  /// position in `spec`. Expressions in k must be whole numbers, strictly increasing from f(0) >=
  /// 1, for every k with f(k) < n.
  Pattern(std::string_view spec, int64_t n);

  /// The same pattern on n tokens. Parses the spec again only if n exceeds size().
  Pattern on(int64_t n) const;

  /// Number of tokens.
  int64_t size() const;

  /// The spec as given, without white space (which is kept inside the file name of dag).
  const std::string& spec() const;

  /// Replaces `cols` with the tokens that token i reads, ascending. Takes O(reads), not O(n), time
  /// and stores nothing; cached(P) takes O(reads of P), random O(reads log reads). Throws Error
  /// unless 0 <= i < size().
  void row(int64_t i, std::vector<int32_t>& cols) const;

  /// Replaces `out` with rows [begin, end), row_ptr counting from 0. Faster than one row at a time.
  /// Throws Error unless 0 <= begin <= end <= size().
  void rows(int64_t begin, int64_t end, Csr& out) const;

  /// Whether row(i + 1) is always a subset of row(i) and {i}; then the live cache after token i is
  /// exactly row(i + 1). True for dense, window, global, blocks, fenwick, cached and their unions.
  /// The answer holds for every n, so it is false for bare offsets, to which a larger n may add
  /// offsets.
  bool inherits() const;

  /// Whether this is the pattern `dense`, where row i is every token below i.
  bool is_dense() const;

  /// Whether a file holds some of the rows: a dag.
  bool reads_file() const;

  /// The most tokens this spec can describe: those of the shortest file of a dag, else 2^31 - 1.
  int64_t most_tokens() const;

  /// For an f pattern (an expression in k, offsets, fib, nlogn, or a union of these), the offsets
  /// below n, ascending. Empty for any other pattern.
  std::vector<int64_t> offsets() const;

  struct Node;  // the parsed description, private to this folder

 private:
  std::string spec_;
  int64_t n_ = 0;
  std::shared_ptr<const Node> root_;
};

Csr to_csr(const Pattern& pattern);

}  // namespace hopmix

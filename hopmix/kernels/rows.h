// The rows of a pattern as kernels read them: from an index list, or made on the fly.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hopmix/kernels/sequences.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix::kernels {

/// Neighbouring rows: row i of them is cols[row_ptr[i] - row_ptr[0] .. row_ptr[i + 1] -
/// row_ptr[0]).
struct RowList {
  const int64_t* row_ptr;
  const int32_t* cols;
};

/// Row i lists, ascending, the tokens j < i that token i reads. A view: an index list must outlive
/// it.
class Rows {
 public:
  Rows(const int64_t* row_ptr, const int32_t* cols) : row_ptr_(row_ptr), cols_(cols) {}
  explicit Rows(const Csr& csr) : Rows(csr.row_ptr.data(), csr.cols.data()) {}
  explicit Rows(const Pattern& pattern) : pattern_(pattern) {}

  /// Row i. The result may point into `scratch` (one a thread), until the next call with it.
  std::span<const int32_t> row(int64_t i, std::vector<int32_t>& scratch) const {
    if (pattern_) {
      pattern_->row(i, scratch);
      return scratch;
    }
    return {cols_ + row_ptr_[i], static_cast<size_t>(row_ptr_[i + 1] - row_ptr_[i])};
  }

  /// Rows [begin, end). The result may point into `made`, until the next call with it.
  RowList list(int64_t begin, int64_t end, Csr& made) const {
    if (pattern_) {
      pattern_->rows(begin, end, made);
      return {made.row_ptr.data(), made.cols.data()};
    }
    return {row_ptr_ + begin, cols_ + row_ptr_[begin]};
  }

  /// Whether row i + 1 is known to be a subset of row i and {i} for every i; of an index list it is
  /// not.
  bool inherits() const { return pattern_ && pattern_->inherits(); }

 private:
  const int64_t* row_ptr_ = nullptr;
  const int32_t* cols_ = nullptr;
  std::optional<Pattern> pattern_;
};

/// Where the coefficients of each read lie in a tensor [B, H, nnz]. In a packed batch the reads of
/// all sequences follow one another, so nnz is their sum.
struct ReadLayout {
  std::vector<int64_t> row_ptr;  // [longest + 1] reads before row i of a sequence
  std::vector<int64_t> first;    // [sequences] reads before each sequence in its batch element
  int64_t nnz = 0;               // reads of one batch element; 0 if there is none

  ReadLayout(const Rows& rows, const Sequences& sequences);
};

}  // namespace hopmix::kernels

// The rows of a pattern as kernels read them: from an index list, or made on the fly.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/sequences.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix::kernels {

/// Neighbouring rows: row i of them is cols[row_ptr[i] - row_ptr[0] .. row_ptr[i + 1] -
/// row_ptr[0]).
struct RowList {
  const int64_t* row_ptr;
  const int32_t* cols;
};

/// Row i lists, ascending, the tokens j < i that token i reads; what was retrieved for a token is
/// in any order, and may hold the token itself. A view: an index list must outlive it.
class Rows {
 public:
  Rows(const int64_t* row_ptr, const int32_t* cols) : row_ptr_(row_ptr), cols_(cols) {}
  /// Retrieved: row i is what is not -1 of cols[i * stride .. i * stride + width).
  Rows(const int32_t* cols, int64_t stride, int64_t width)
      : cols_(cols), stride_(stride), width_(width) {}
  explicit Rows(const Csr& csr) : Rows(csr.row_ptr.data(), csr.cols.data()) {}
  explicit Rows(const Pattern& pattern) : pattern_(pattern) {}

  /// Row i. The result may point into `scratch` (one a thread), until the next call with it.
  std::span<const int32_t> row(int64_t i, std::vector<int32_t>& scratch) const {
    if (pattern_) {
      pattern_->row(i, scratch);
      return scratch;
    }
    if (row_ptr_ == nullptr) {
      scratch.resize(width_);
      scratch.resize(entries(i, scratch.data()));
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
    if (row_ptr_ == nullptr) {
      made.row_ptr.resize(end - begin + 1);
      made.cols.resize((end - begin) * width_);
      made.row_ptr[0] = 0;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = made.row_ptr[i - begin];
        made.row_ptr[i - begin + 1] = first + entries(i, made.cols.data() + first);
      }
      return {made.row_ptr.data(), made.cols.data()};
    }
    return {row_ptr_ + begin, cols_ + row_ptr_[begin]};
  }

  /// Whether row i + 1 is known to be a subset of row i and {i} for every i; of an index list it is
  /// not.
  bool inherits() const { return pattern_ && pattern_->inherits(); }

 private:
  // Writes what was retrieved for token i to `out`; gives how many. Of `width_` entries none is
  // skipped by a branch: where the -1 stand is as good as random.
  int64_t entries(int64_t i, int32_t* out) const {
    const int32_t* list = cols_ + i * stride_;
    int64_t count = 0;
    for (int64_t r = 0; r < width_; ++r) {
      out[count] = list[r];
      count += list[r] >= 0;
    }
    return count;
  }

  const int64_t* row_ptr_ = nullptr;
  const int32_t* cols_ = nullptr;
  int64_t stride_ = 0, width_ = 0;
  std::optional<Pattern> pattern_;
};

/// The rows of every head: those of one pattern, or what was retrieved for each head alone.
class RowsOfHeads {
 public:
  /// One pattern for all. A view of it.
  RowsOfHeads(const Rows& rows) : shared_(&rows) {}  // NOLINT: implicit

  /// indices [B, T, lists, width]: head h of `heads` reads list h / (heads / lists), -1 for none.
  /// Positions count from the first token of their sequence. A view of both.
  RowsOfHeads(const int32_t* indices, int64_t heads, int64_t lists, int64_t width,
              const Sequences& sequences)
      : indices_(indices),
        group_(lists > 0 ? heads / lists : 1),
        lists_(lists),
        width_(width),
        sequences_(&sequences) {}

  Rows of(const Sequence& s, int64_t head) const {
    if (shared_ != nullptr) return *shared_;
    const int64_t at = head_offset(sequences_->first_token(s), lists_, head / group_, width_);
    return {indices_ + at, lists_ * width_, width_};
  }

  /// Whether `count` heads from `first` on have the same rows.
  bool alike(int64_t first, int64_t count) const {
    return shared_ != nullptr || first / group_ == (first + count - 1) / group_;
  }

 private:
  const Rows* shared_ = nullptr;
  const int32_t* indices_ = nullptr;
  int64_t group_ = 1, lists_ = 0, width_ = 0;
  const Sequences* sequences_ = nullptr;
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

// The best columns of rows of scores that come tile by tile, exactly and with the memory of a few
// candidates a row: the selection of attention_topk.
//
// A score gets in if it beats the kappa-th best of those seen so far, as of the last time that was
// looked up; when the candidates of a row fill their memory, all but the kappa best are dropped.
// Candidates stay in the order of their columns, so of equal scores the earlier one is kept. On
// scores in random order a row of n lets in about kappa log2(n / kappa).
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/dense/softmax_tile.h"

namespace hopmix::kernels {

/// Integers that are in the order of the scores: 0 and -0 are one, NaN is below all numbers.
template <typename A>
using ScoreKey = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;

/// Those of one row.
template <typename A>
struct Candidates {
  ScoreKey<A>*keys, *columns;
  int64_t count;
  ScoreKey<A> threshold;  // of the kappa-th best when it was looked up, or the least
  A open;                 // the best so far of a block that goes on in the next tile ...
  int64_t open_block;     // ... and its number, or -1
};

struct TopShape {
  int64_t kappa, block;

  /// Scores that are looked at before the candidates' number is.
  static constexpr int64_t kGroup = 64;
  int64_t capacity() const;
};

/// Blocks of one column are columns. A block's score is its best; blocks are counted from column 0.
template <typename A>
class TopScores {
 public:
  TopScores(int64_t rows, const TopShape& shape);

  /// Forgets all.
  void clear();

  /// Columns [first, first + cols) of the matrix of scores, all columns before them having been
  /// offered. Row r sees the first `diagonal + r` of them. Scores of the last row are read up to
  /// kTileLanes past its end.
  void offer(const ScoreTile<A>& tile, int64_t diagonal, int64_t first);

  /// Writes the row's best columns or blocks, best first, and -1 to fill `kappa` places. The row
  /// must be cleared before it is offered more.
  void take(int64_t row, int64_t kappa, int32_t* out);

 private:
  TopShape shape_;
  Buffer<ScoreKey<A>> memory_;
  std::vector<Candidates<A>> rows_;
};

}  // namespace hopmix::kernels

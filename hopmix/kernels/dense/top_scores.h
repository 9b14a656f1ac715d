// Selects the best columns of rows of scores that arrive tile by tile, exactly and with memory for
// a few candidates per row: the selection of attention_topk.
//
// A score becomes a candidate if it beats the kappa-th best seen so far, as of the last time that
// was determined. When the candidates of a row fill their memory, all but the kappa best are
// dropped. Candidates stay in column order, so among equal scores the earlier one is kept. For
// scores in random order, a row of n admits about kappa log2(n / kappa) candidates.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/dense/softmax_tile.h"

namespace hopmix::kernels {

/// Integers in the order of the scores: 0 and -0 are equal, NaN is below all numbers.
template <typename A>
using ScoreKey = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;

/// The candidates of one row.
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

  /// Scores are compared this many at a time before the candidates are counted.
  static constexpr int64_t kGroup = 64;
  int64_t capacity() const;
};

/// Blocks of one column are columns. A block's score is its best score; blocks are counted from
/// column 0.
template <typename A>
class TopScores {
 public:
  TopScores(int64_t rows, const TopShape& shape);

  /// Removes all candidates.
  void clear();

  /// Offers columns [first, first + cols) of the matrix of scores, after all columns before them.
  /// Row r sees the first `diagonal + r` of them. Reads scores of the last row up to kTileLanes
  /// past its end.
  void offer(const ScoreTile<A>& tile, int64_t diagonal, int64_t first);

  /// Writes the row's best columns or blocks, best first, padded with -1 to `kappa`. The row must
  /// be cleared before it is offered more.
  void take(int64_t row, int64_t kappa, int32_t* out);

 private:
  TopShape shape_;
  Buffer<ScoreKey<A>> memory_;
  std::vector<Candidates<A>> rows_;
};

}  // namespace hopmix::kernels

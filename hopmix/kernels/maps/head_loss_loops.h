// The softmax of head_loss on tiles of transposed logits, compiled for every instruction set. A
// tile has one vocabulary entry per row and kHeadRows rows of the input as columns, so that all
// sums and maxima of the softmax are computed side by side in vectors.
#pragma once

#include <cstdint>

namespace hopmix::kernels {

inline constexpr int64_t kHeadRows = 64;

template <typename A>
struct HeadLossLoops {
  /// Adds bias (unless null) to tile [entries, kHeadRows]; for each column, computes the largest
  /// entry, its index and the sum of e^(entry - largest), which replaces the tile.
  void (*exponentials)(A* tile, const A* bias, int64_t entries, A* largest, A* index, A* sum);

  /// Combines the results of `blocks` tiles for each column, each [blocks, kHeadRows]: lse
  /// [kHeadRows].
  void (*combine)(const A* largest, const A* sum, int64_t blocks, A* lse);

  /// largest becomes row_weight e^(largest - lse), the factor for the tiles.
  void (*factors)(A* largest, int64_t blocks, const A* lse, const A* row_weights);

  /// Columns of the tile times factor [kHeadRows]; the sum of each row is added to sums unless
  /// null.
  void (*scale)(A* tile, int64_t entries, const A* factor, A* sums);
};

template <typename A>
HeadLossLoops<A> head_loss_loops();

}  // namespace hopmix::kernels

// The softmax of head_loss by tiles of transposed logits, compiled for every instruction set. A
// tile has a vocabulary entry to a row and kHeadRows rows of the input as columns, so that all
// sums and maxima of the softmax run beside one another in vectors.
#pragma once

#include <cstdint>

namespace hopmix::kernels {

inline constexpr int64_t kHeadRows = 64;

template <typename A>
struct HeadLossLoops {
  /// tile [entries, kHeadRows] += bias (unless null); of each column the largest entry, its index
  /// and the sum of e^(entry - largest), which the tile becomes.
  void (*exponentials)(A* tile, const A* bias, int64_t entries, A* largest, A* index, A* sum);

  /// What `blocks` tiles know of a column, each [blocks, kHeadRows], together: lse [kHeadRows].
  void (*combine)(const A* largest, const A* sum, int64_t blocks, A* lse);

  /// largest becomes row_weight e^(largest - lse): what the tiles are to be multiplied with.
  void (*factors)(A* largest, int64_t blocks, const A* lse, const A* row_weights);

  /// Columns of the tile times factor [kHeadRows]; the sum of each row is added to sums unless
  /// null.
  void (*scale)(A* tile, int64_t entries, const A* factor, A* sums);
};

template <typename A>
HeadLossLoops<A> head_loss_loops();

}  // namespace hopmix::kernels

// Causal softmax attention by blocks of rows, with memory O(T D), which can also pick for each row
// its best keys while their scores are at hand: the online softmax of flash attention (arXiv
// 2205.14135) tile by tile, by the products and tiles of dense_blocks.h. A row's bits do not depend
// on who computes the others.
#pragma once

#include <type_traits>

#include "hopmix/kernels/dense/softmax_tile.h"
#include "hopmix/kernels/dense/top_scores.h"
#include "hopmix/kernels/base/operands.h"

namespace hopmix::ops {

/// Keys and values of one head of one sequence, packed for the rows of all queries that read them.
/// T is the storage type, O what products take.
template <typename T, typename O>
class AttentionBlocks {
 public:
  using A = kernels::Accumulator<T>;

  static constexpr int64_t kBlock = 128;  // rows of a block

  AttentionBlocks(const kernels::MatrixView<T>& k, const kernels::MatrixView<T>& v, double scale);

  /// A caller's memory for one block; of one query head at a time.
  struct Block {
    explicit Block(const AttentionBlocks& of);

    kernels::Buffer<O> q, p;
    kernels::Buffer<A> scores, largest, sum;
    kernels::Buffer<A> mix;  // [kBlock, stride]: the output
    kernels::Buffer<A> lse;  // log2 of the sum of 2^(factor q . k), as DenseBlocks takes it
    int64_t stride;
  };

  /// Rows [first, first + kBlock) of `q`, or what there are of them; `first` is a multiple of
  /// kBlock. `best` is offered each row's scores, those of the row itself if `self`; a product that
  /// is larger wins, or with a negative scale a smaller one.
  void forward(const kernels::MatrixView<T>& q, int64_t first, bool self, Block& out,
               kernels::TopScores<A>& best) const;

 private:
  static constexpr int64_t kSmall = kernels::kTileLanes;  // rows of a strip of the diagonal block
  static constexpr bool kMixed = !std::is_same_v<O, A>;

  int64_t column(int64_t token) const {
    return token / panel_ * keys_ * panel_ + (kMixed ? 2 : 1) * (token % panel_);
  }
  void scores_of(int64_t rows, int64_t cols, int64_t from, const Block& block) const;
  void add_diagonal(int64_t first, int64_t rows, const Block& block) const;

  int64_t rows_, keys_, values_;
  int64_t panel_;  // columns of a tile, as in DenseBlocks
  A factor_, sign_;
  kernels::Buffer<O> columns_, right_;  // keys in panels [keys, panel]; values [rows, values]
  const kernels::TileTable<A, O>& tiles_ = kernels::tiles<A, O>();
};

}  // namespace hopmix::ops

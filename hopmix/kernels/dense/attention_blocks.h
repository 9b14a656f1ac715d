// One head of causal softmax attention in blocks of rows, with memory O(T D): the online softmax of
// flash attention (arXiv 2205.14135) tile by tile. A row's bits do not depend on how the other rows
// are computed. In the block on the diagonal, products are computed in strips of rows, so that
// little beyond the triangle is computed.
#pragma once

#include <type_traits>

#include "hopmix/kernels/base/operands.h"
#include "hopmix/kernels/dense/softmax_tile.h"
#include "hopmix/kernels/dense/top_scores.h"

namespace hopmix::kernels {

/// Rows per block.
inline constexpr int64_t kAttentionBlock = 128;

/// Keys and values of one head of one sequence, packed for the rows of all queries that read them.
/// T is the storage type, O the type of the products' operands.
template <typename T, typename O>
class AttentionBlocks {
 public:
  using A = Accumulator<T>;

  AttentionBlocks(const MatrixView<T>& k, const MatrixView<T>& v, double scale);

  /// Scratch memory for one block of one query head.
  struct Block {
    explicit Block(const AttentionBlocks& of);

    Buffer<O> q, p;
    Buffer<A> scores, largest, sum;
    Buffer<A> mix;  // [kAttentionBlock, stride]: the output
    Buffer<A> lse;  // log2 of the sum of 2^(factor q . k)
    int64_t stride;
  };

  /// Rows [first, first + kAttentionBlock) of `q`, or as many as exist; `first` is a multiple of
  /// kAttentionBlock. Passes each row's scores to `best`, if given, including the row's own if
  /// `self`; larger products win, or smaller ones if the scale is negative.
  void forward(const MatrixView<T>& q, int64_t first, bool self, Block& out,
               TopScores<A>* best) const;

 private:
  static constexpr bool kMixed = !std::is_same_v<O, A>;

  int64_t column(int64_t token) const {
    return token / panel_ * keys_ * panel_ + (kMixed ? 2 : 1) * (token % panel_);
  }
  void add_diagonal(int64_t first, int64_t rows, const O* p, A* mix) const;

  int64_t rows_, keys_, values_;
  int64_t panel_;  // columns of a tile, as in DenseBlocks
  A factor_, sign_;
  Buffer<O> columns_, right_;  // keys in panels [keys, panel]; values [rows, values]
  Buffer<uint8_t> finite_;     // whether the values of a strip are
  const TileTable<A, O> tiles_ = tiles<A, O>();
};

/// One query head: its gradients from grad_o and from the forward's mix and lse (rows `stride`
/// apart). T is the storage type, O the type of the products' operands.
template <typename T>
struct AttentionHead {
  MatrixView<T> q, k, v, grad_o;
  const Accumulator<T>* mix;  // rows as of grad_o
  const Accumulator<T>* lse;
  int64_t lse_stride;
  double scale;
};

/// Adds to dk and dv [padded(T), padded width] and writes dq [padded(T), padded(DK)]; dq and dk
/// still lack the factor `scale`.
template <typename T, typename O>
void attention_head_backward(const AttentionHead<T>& head, Accumulator<T>* dq, Accumulator<T>* dk,
                             Accumulator<T>* dv);

}  // namespace hopmix::kernels

// Dense causal recurrences by blocks, with memory O(T D). One head of one sequence is
//
//   w_i = c_i + g_i mix_i,   mix_i = sum_j P_ij w_j,   P = softmax over j < i (or j <= i) of
//   scale q_i . k_j
//
// that is W = (I - diag(g) P)^{-1} C, by forward substitution over blocks of rows: what a block
// reads of earlier blocks is a product with W that is already solved (tile by tile, with the online
// softmax of flash attention, arXiv 2205.14135), then its diagonal block is solved. No score
// outlives its tile.
//
// Backward. Let l = dLoss/dw and h = dLoss/dmix, both total. Then
//
//   h_i = direct_i + g_i l_i,   l_j = direct_j + sum_i P_ij h_i:
//
// the transposed system, by blocks of columns from the last to the first. From it
// dLoss/dc = l, dLoss/dg_i = l_i . mix_i, and with d_ij = h_i . w_j the scores get
// P_ij (d_ij - sum_j P_ij d_ij) = P_ij (d_ij - h_i . mix_i), all of it from the same tiles. Tiles
// are transposed (rows are keys), so that no product needs the transpose of a tile; P comes back
// from the scores and the kept log2-sum-exp2 of each row.
//
// Products take operands of type O, everything else is the accumulator type A.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "hopmix/kernels/bfloat16.h"
#include "hopmix/kernels/softmax_tile.h"
#include "hopmix/ops/operands.h"

namespace hopmix::ops {

struct DenseShape {
  int64_t length, key_width, value_width;
  bool self;  // whether a token reads itself
  double scale;

  int64_t rows() const { return padded(length); }
  int64_t keys() const { return padded(key_width); }
  int64_t values() const { return padded(value_width); }
};

/// T is the storage type of q and k; O and Products as above.
template <typename T, typename O, typename Products>
class DenseBlocks {
 public:
  using A = kernels::Accumulator<T>;

  explicit DenseBlocks(const DenseShape& shape)
      : shape_(shape),
        rows_(shape.rows()),
        keys_(shape.keys()),
        values_(shape.values()),
        factor_(static_cast<A>(shape.scale * 1.44269504088896340736)) {}

  /// gate [rows], w [rows, values] holding c, padding 0 -> w, mix [rows, values] and lse [rows]:
  /// log2 of the sum of 2^(factor q . k), infinity where nothing is read.
  void forward(const MatrixView<T>& q, const MatrixView<T>& k, const A* gate, A* w, A* mix, A* lse);

  /// `l` and `h` [rows, values] hold the direct gradients of w and mix and become the total ones.
  /// dq and dk [rows, keys], both or neither.
  void backward(const MatrixView<T>& q, const MatrixView<T>& k, const A* gate, const A* w,
                const A* mix, const A* lse, A* l, A* h, A* dq, A* dk);

 private:
  // Rows of a block of the substitution, and of its own smaller ones.
  static constexpr int64_t kBlock = 128, kSmall = kernels::kTileLanes;
  static constexpr bool kMixed = !std::is_same_v<O, A>;
  static constexpr int64_t kAll = -kernels::kNoDiagonal;

  int64_t panels() const { return (rows_ + panel_ - 1) / panel_; }

  /// Column `token` of a transposed right factor in panels [width, panel_].
  int64_t column(int64_t token, int64_t width) const {
    return token / panel_ * width * panel_ + (kMixed ? 2 : 1) * (token % panel_);
  }

  void scores_of(int64_t m, int64_t n, const O* rows, const O* columns, int64_t width,
                 A* out) const {
    Products::multiply(m, n, width, rows, width, columns, panel_, out, panel_, /*add=*/false);
  }

  void solve_block(int64_t first, int64_t n, const A* p, const A* sum, const A* gate, A* w,
                   A* mix) const;
  void solve_block_backward(int64_t first, int64_t n, const A* p, const A* gate, A* l, A* h) const;

  DenseShape shape_;
  int64_t rows_, keys_, values_;
  // Panels hold this many columns of a transposed matrix, which is also the width of a tile: two
  // float tiles fit in the second-level cache, and in short sequences nothing is wasted.
  int64_t panel_ = std::min<int64_t>(256, rows_);
  A factor_;
  const kernels::TileTable<A, O>& mixed_ = kernels::tiles<A, O>();
  const kernels::TileTable<A, A>& exact_ = kernels::tiles<A, A>();
};

}  // namespace hopmix::ops

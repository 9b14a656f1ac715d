// Dense causal recurrences in blocks, with memory O(T D). One head of one sequence is
//
//   w_i = c_i + g_i mix_i,   mix_i = sum_j P_ij w_j,   P = softmax over j < i (or j <= i) of
//   scale q_i . k_j
//
// that is, W = (I - diag(g) P)^{-1} C, by forward substitution over blocks of rows: the part that a
// block reads from earlier blocks is a product with W, which is already solved there (tile by tile,
// with the online softmax of flash attention, arXiv 2205.14135); then its diagonal block is solved.
// No score outlives its tile. README.md has the derivations.
//
// Products have operands of type O; everything else has the accumulator type A.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/operands.h"
#include "hopmix/kernels/dense/softmax_tile.h"

namespace hopmix::kernels {

struct DenseShape {
  int64_t length, key_width, value_width;
  bool self;  // whether a token reads itself
  double scale;

  int64_t rows() const { return padded(length); }
  int64_t keys() const { return padded(key_width); }
  int64_t values() const { return padded(value_width); }
};

/// Data of a block of rows [first, first + n): numbers per row, and matrices [n, values].
template <typename A>
struct DenseRows {
  int64_t first, n;
  A *gate, *w, *mix, *lse;
  A *l = nullptr, *h = nullptr;  // backward
  const A* dk = nullptr;         // [n, keys], if wanted
};

/// T is the storage type of q and k; O the type of the products' operands. Of the matrices of a
/// sequence, only those that other blocks read are stored whole: w forward, h backward.
template <typename T, typename O>
class DenseBlocks {
 public:
  using A = Accumulator<T>;
  using Visit = std::function<void(const DenseRows<A>&)>;

  explicit DenseBlocks(const DenseShape& shape)
      : shape_(shape),
        rows_(shape.rows()),
        keys_(shape.keys()),
        values_(shape.values()),
        factor_(static_cast<A>(shape.scale * 1.44269504088896340736)) {}

  /// Block by block, from the first: load(rows) fills gate and w, which receives c and is 0 before;
  /// done(rows) gets w, mix and lse: log2 of the sum of 2^(factor q . k), infinity if nothing is
  /// read.
  void forward(const MatrixView<T>& q, const MatrixView<T>& k, const Visit& load,
               const Visit& done);

  /// Block by block, from the last: load(rows) fills gate, w, mix and lse, and in l and h the
  /// direct gradients of w and mix, all 0 before (lse infinity); done(rows) gets the total
  /// gradients, and dk. load() may be called twice for a block. dq [rows, keys], or null, in which
  /// case dk is not computed either.
  void backward(const MatrixView<T>& q, const MatrixView<T>& k, const Visit& load,
                const Visit& done, A* dq);

  /// Rows per block of the substitution.
  static constexpr int64_t kBlock = 128;

 private:
  static constexpr bool kMixed = !std::is_same_v<O, A>;
  static constexpr int64_t kAll = -kNoDiagonal;

  int64_t panels() const { return (rows_ + panel_ - 1) / panel_; }

  /// Column `token` of a transposed right factor in panels [width, panel_].
  int64_t column(int64_t token, int64_t width) const {
    return token / panel_ * width * panel_ + (kMixed ? 2 : 1) * (token % panel_);
  }

  void scores_of(int64_t m, int64_t n, const O* rows, const O* columns, int64_t width,
                 A* out) const {
    multiply<O>(m, n, width, rows, width, columns, panel_, out, panel_, /*add=*/false);
  }

  DenseShape shape_;
  int64_t rows_, keys_, values_;
  // Width of a tile: two float tiles fit the L2 cache, and short sequences waste nothing.
  int64_t panel_ = std::min<int64_t>(256, rows_);
  A factor_;
  const TileTable<A, O> mixed_ = tiles<A, O>();
  const TileTable<A, A> exact_ = tiles<A, A>();
};

}  // namespace hopmix::kernels

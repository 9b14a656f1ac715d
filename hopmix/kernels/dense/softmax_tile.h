// The parts of dense blockwise attention that are not matrix products: the softmax of a tile of
// scores, its gradient, and the small triangular solves on the diagonal. dense_blocks.h combines
// them with the products.
//
// Exponents are base 2: a weight is 2^(factor s - m) with factor = scale log2(e), which is
// e^(scale s) up to the common 2^m. Numbers of columns, leading dimensions and widths are multiples
// of kTileLanes, so no loop has a tail; the caller handles padding.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

inline constexpr int64_t kTileLanes = 16;

/// Raw products q . k, row-major. `diagonal` says where the causal mask cuts; see the functions.
template <typename A>
struct ScoreTile {
  const A* scores;
  int64_t rows, cols, ld;
  A factor;
};

/// Everything is visible.
inline constexpr int64_t kNoDiagonal = INT64_MAX / 2;

/// The kernels, as compiled for the best instructions of this CPU. A is what sums are made in, O
/// what products take: (float, float), (float, Bfloat16) or (double, double).
template <typename A, typename O>
struct TileTable {
  /// One step of the online softmax over the columns of a row (Milakov and Gimelshein,
  /// arXiv 1805.02867). Row r sees its first `diagonal + r` columns. Updates the running maximum
  /// `largest` and normalizer `sum` (start with -inf and 0), rescales the rows of `acc` [rows,
  /// width] to the new maximum and writes the weights 2^(factor s - largest) to p [rows, ldp], 0
  /// where hidden. p may be the scores themselves.
  void (*softmax)(const ScoreTile<A>& tile, int64_t diagonal, O* p, int64_t ldp, A* largest, A* sum,
                  A* acc, int64_t width);

  /// Transposed weights: rows are keys, columns are queries. p [rows, ldp] = 2^(factor s - lse)
  /// with the queries' lse [cols]; row r is hidden (0) from the queries in its first `diagonal + r`
  /// columns. An lse of infinity gives 0. p may be the scores themselves.
  void (*weights)(const ScoreTile<A>& tile, int64_t diagonal, const A* lse, A* p, int64_t ldp);

  /// The same weights p, and from grad = dLoss/dp [rows, ld] the gradient of the scaled scores
  /// ds = p (grad - delta) with the queries' delta [cols]. All have the tile's ld, except that
  /// `pairs` (if O is not A) gets ds once more as [rows / 2, ld, 2]: rows 2r and 2r+1 interleaved.
  /// rows is even. p may be the scores and ds may be grad.
  void (*softmax_backward)(const ScoreTile<A>& tile, int64_t diagonal, const A* lse, const A* delta,
                           const A* grad, O* p, O* ds, O* pairs);

  /// The diagonal block of mix_i = (acc_i + sum_j p_ij w_j) / sum_i, w_i = c_i + gate_i mix_i, over
  /// j < i, or j <= i with `self`. p [n, ldp]; acc [n, width] becomes mix, w [n, width] holds c and
  /// becomes w. A row whose sum is 0 has mix 0.
  void (*substitute)(int64_t n, int64_t width, bool self, const A* p, int64_t ldp, const A* sum,
                     const A* gate, A* acc, A* w);

  /// Its transpose, from the last row to the first: l_j += sum_i p_ij h_i, h_j += gate_j l_j, over
  /// i > j, or i >= j with `self`; h starts as the direct gradient of mix. p is normalized and
  /// transposed: p_ij at [j, i].
  void (*substitute_backward)(int64_t n, int64_t width, bool self, const A* p, int64_t ldp,
                              const A* gate, A* l, A* h);
};

template <typename A, typename O>
TileTable<A, O> tiles();

/// to [cols, ld] = the transpose of from [rows, stride], in words of 4 bytes. rows and cols are
/// multiples of 4.
void transpose_words(const void* from, int64_t rows, int64_t cols, int64_t stride, void* to,
                     int64_t ld);

}  // namespace hopmix::kernels

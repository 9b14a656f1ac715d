#include "hopmix/kernels/dense/dense_blocks.h"

#include "hopmix/kernels/dense/triangular.h"

namespace hopmix::kernels {
namespace {

// d_ij = h_i . w_j loses most of its digits when the mean over j is taken off it, so if O is
// shorter than A each factor is split in two, x = high + low, and three products make one of three
// times the width: [high, high, low] . [high, low, high].
template <typename O, typename A>
constexpr int64_t kParts = std::is_same_v<O, A> ? 1 : 3;

// Rows [n, width] as a left factor [n, kParts width] whose part `low_part` is low.
template <typename O, typename A>
void pack_parts(const A* x, int64_t n, int64_t width, int64_t low_part, O* out) {
  if constexpr (kParts<O, A> == 1) {
    std::copy_n(x, n * width, out);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const A* row = x + i * width;
      O *first = out + i * 3 * width, *second = first + width, *third = second + width;
      O *low = low_part == 1 ? second : third, *other = low_part == 1 ? third : second;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        const O high = convert<O>(row[c]);
        first[c] = other[c] = high;
        low[c] = convert<O>(row[c] - convert<A>(high));
      }
    }
  }
}

// Rows [first, first + n) of x, transposed, as columns of a right factor [width, ld]. `left` is
// scratch for these rows as a left factor.
template <typename O, typename S>
void pack_rows_as_columns(const MatrixView<S>& x, int64_t first, int64_t n, int64_t width, O* left,
                          O* out, int64_t ld) {
  if constexpr (std::is_same_v<O, S> && sizeof(O) == 4) {
    if (x.cols == width && first + n <= x.rows) {
      const S* rows = x.data + first * x.stride;
      return transpose_words(rows, n, width, x.stride, out, ld);
    }
  }
  pack_left<O>(x, first, n, width, left);
  pack_columns<O>(left, n, width, out, ld);
}

}  // namespace

template <typename T, typename O>
void DenseBlocks<T, O>::forward(const MatrixView<T>& q, const MatrixView<T>& k, const Visit& load,
                                const Visit& done) {
  constexpr A kInfinity = std::numeric_limits<A>::infinity();
  const int64_t most = std::min(kBlock, rows_);
  const Buffer<O> columns(panel_ * keys_), k_left(panel_ * keys_), q_left(most * keys_);
  const Buffer<O> p(kMixed ? most * panel_ : 0), w_left(kMixed ? most * values_ : 0);
  // Later blocks read w, rounded if products do.
  const Buffer<O> right(kMixed ? rows_ * values_ : 0);
  const Buffer<A> all(kMixed ? most * values_ : rows_ * values_), mix(most * values_);
  const Buffer<A> scores(most * panel_), largest(most), sum(most), gate(most), lse(most);

  for (int64_t first = 0; first < rows_; first += kBlock) {
    const int64_t n = std::min(kBlock, rows_ - first);
    const DenseRows<A> rows{first, n, gate, all + (kMixed ? 0 : first * values_), mix, lse};
    std::fill_n(rows.w, n * values_, A{0});
    std::fill_n(rows.gate, n, A{0});
    load(rows);
    pack_left<O>(q, first, n, keys_, q_left);
    std::fill_n(largest + 0, n, -kInfinity);
    std::fill_n(sum + 0, n, A{0});
    std::fill_n(rows.mix, n * values_, A{0});

    for (int64_t j = 0; j < first; j += panel_) {
      const int64_t cols = std::min(panel_, first - j);
      pack_rows_as_columns<O>(k, j, cols, keys_, k_left + 0, columns + 0, panel_);
      scores_of(n, cols, q_left, columns, keys_, scores);
      O* weights;
      const O* read;
      if constexpr (kMixed) {
        weights = p;
        read = right + j * values_;
      } else {
        weights = scores;
        read = all + j * values_;
      }
      mixed_.softmax({scores, n, cols, panel_, factor_}, kNoDiagonal, weights, panel_, largest, sum,
                     rows.mix, values_);
      multiply<O>(n, values_, cols, weights, panel_, read, values_, rows.mix, values_, true);
    }

    pack_rows_as_columns<O>(k, first, n, keys_, k_left + 0, columns + 0, panel_);
    scores_of(n, n, q_left, columns, keys_, scores);
    exact_.softmax({scores, n, n, panel_, factor_}, shape_.self ? 1 : 0, scores, panel_, largest,
                   sum, rows.mix, values_);
    solve_lower<A>(n, values_, shape_.self, scores, panel_, sum, rows.gate, rows.mix, rows.w);
    for (int64_t i = 0; i < n; ++i) {
      const bool reads = sum[i] != 0 && first + i < shape_.length;
      lse[i] = reads ? largest[i] + std::log2(sum[i]) : kInfinity;
    }
    if constexpr (kMixed) {
      pack_left<O>(MatrixView<A>{rows.w, n, values_, values_}, 0, n, values_, w_left);
      pack_right<O>(w_left, n, values_, right + first * values_);
    }
    done(rows);
  }
  release_gemm();
}

template <typename T, typename O>
void DenseBlocks<T, O>::backward(const MatrixView<T>& q, const MatrixView<T>& k, const Visit& load,
                                 const Visit& done, A* dq) {
  const bool wanted = dq != nullptr;
  const int64_t most = std::min(kBlock, rows_), tile = most * panel_, matrix = most * values_;
  const int64_t parts = kParts<O, A> * values_;  // width of the factors of d
  // By row of the sequence: h, which earlier blocks read, and what is packed ahead.
  const int64_t kept = kAhead ? panels() * panel_ : panel_, in_order = kAhead ? rows_ : panel_;
  const Buffer<A> h(kAhead ? matrix : rows_ * values_), lse(rows_), delta(rows_);
  const Buffer<O> q_columns(kept * keys_), q_right(kMixed && wanted ? in_order * keys_ : 0);
  const Buffer<O> h_columns(wanted ? kept * parts : 0), h_right(kMixed ? in_order * values_ : 0);
  // By row of the block.
  const Buffer<A> gate(most), w(matrix), mix(matrix), l(matrix), dk(wanted ? most * keys_ : 0);
  const Buffer<O> k_left(most * keys_), k_left_transposed(kBlock * keys_), w_left(most * parts);
  // Of a tile.
  const Buffer<O> left(std::max(panel_ * keys_, kMixed ? most * parts : 0));
  const Buffer<O> p(kMixed ? tile : 0), ds(kMixed && wanted ? tile : 0);
  const Buffer<O> ds_pairs(kMixed ? tile : 0);
  const Buffer<A> scores(tile), grad(wanted ? tile : 0), exact(tile);
  // d_ij - sum_j P_ij d_ij is the same for any origin of w and mix. Where a token hands on nearly
  // all that it reads, w is large and nearly constant; its mean as the origin keeps the digits that
  // differ.
  const Buffer<A> origin(values_), near(wanted ? matrix : 0);

  const auto block = [&](int64_t first) {
    const int64_t n = std::min(kBlock, rows_ - first);
    const DenseRows<A> rows{first,
                            n,
                            gate,
                            w,
                            mix,
                            lse + first,
                            l,
                            h + (kAhead ? 0 : first * values_),
                            wanted ? dk + 0 : nullptr};
    std::fill_n(rows.gate, n, A{0});
    std::fill_n(rows.lse, n, std::numeric_limits<A>::infinity());  // nothing in the padding
    for (A* x : {rows.w, rows.mix, rows.l, rows.h}) std::fill_n(x, n * values_, A{0});
    load(rows);
    return rows;
  };
  if (wanted) {
    std::fill_n(origin + 0, values_, A{0});
    for (int64_t first = 0; first < rows_; first += kBlock) {
      const DenseRows<A> rows = block(first);
      for (int64_t i = 0; i < std::min(rows.n, shape_.length - first); ++i) {
#pragma omp simd
        for (int64_t c = 0; c < values_; ++c) origin[c] += rows.w[i * values_ + c];
      }
    }
    for (int64_t c = 0; c < values_; ++c) origin[c] /= static_cast<A>(shape_.length);
    std::fill_n(dq, rows_ * keys_, A{0});
  }

  // dq, transposed, in panels: that of query i has this many columns.
  const auto panel_of = [&](int64_t i) { return std::min(panel_, rows_ - i / panel_ * panel_); };

  // Where the columns of queries from i on lie in a right factor.
  const auto at = [&](int64_t i, int64_t width) { return kAhead ? column(i, width) : 0; };

  // Queries [i, i + cols) as columns and, for dk, as rows of a right factor.
  const O* q_rows = nullptr;
  int64_t q_stride = keys_;
  const auto pack_queries = [&](int64_t i, int64_t cols) {
    pack_rows_as_columns<O>(q, i, cols, keys_, left + 0, q_columns + at(i, keys_), panel_);
    if (!wanted) return;
    if constexpr (kMixed) {
      pack_right<O>(left, cols, keys_, q_right + i * keys_);
    } else if (std::is_same_v<O, T> && q.cols == keys_ && i + cols <= q.rows) {
      q_rows = reinterpret_cast<const O*>(q.data + i * q.stride);
      q_stride = q.stride;
    } else {
      pack_left<O>(q, i, cols, keys_, left);
      q_rows = left;
      q_stride = keys_;
    }
  };
  // h of rows [i, i + n), found at x, for later tiles.
  const auto pack_h = [&](int64_t i, int64_t n, const A* x) {
    if constexpr (kMixed) {
      pack_left<O>(MatrixView<A>{x, n, values_, values_}, 0, n, values_, left);
      pack_right<O>(left, n, values_, h_right + i * values_);
      if (!wanted) return;
      pack_parts<O>(x, n, values_, 1, left + 0);
      pack_columns<O>(left, n, parts, h_columns + at(i, parts), panel_);
    } else if (wanted) {
      pack_columns<O>(x, n, values_, h_columns + at(i, parts), panel_);
    }
  };
  if (kAhead) {
    for (int64_t i = 0; i < rows_; i += panel_) pack_queries(i, std::min(panel_, rows_ - i));
  }

  // The tile of keys [first, first + n) and queries [i, i + cols), whose scores are made: its
  // weights and, if wanted, the gradients of q and k through it.
  const auto backward_tile = [&](int64_t n, int64_t i, int64_t cols, int64_t diagonal) {
    const ScoreTile<A> t{scores, n, cols, panel_, factor_};
    if (!wanted) {
      exact_.weights(t, diagonal, lse + i, scores, panel_);
      if constexpr (kMixed) {
        pack_left<O>(MatrixView<A>{scores, n, cols, panel_}, 0, n, panel_, p + 0);
      }
      return;
    }
    if (!kAhead) pack_h(i, cols, h + i * values_);
    scores_of(n, cols, w_left, h_columns + at(i, parts), parts, grad);
    O *weights, *slopes;
    if constexpr (kMixed) {
      weights = p, slopes = ds;
    } else {
      weights = scores, slopes = grad;
    }
    mixed_.softmax_backward(t, diagonal, lse + i, delta + i, grad, weights, slopes, ds_pairs);
    if constexpr (kMixed) q_rows = q_right + i * keys_;
    multiply<O>(n, keys_, cols, slopes, panel_, q_rows, q_stride, dk, keys_, true);
    const O* right = slopes;
    if constexpr (kMixed) right = ds_pairs;
    multiply<O>(keys_, cols, n, k_left_transposed, kBlock, right, panel_,
                dq + (i / panel_ * keys_ * panel_ + i % panel_), panel_of(i), true);
  };

  for (int64_t first = (rows_ - 1) / kBlock * kBlock; first >= 0; first -= kBlock) {
    const DenseRows<A> rows = block(first);
    const int64_t n = rows.n;
    pack_left<O>(k, first, n, keys_, k_left);
    if (wanted) {
      std::fill_n(dk + 0, n * keys_, A{0});
      pack_left_transposed<O>(k_left, n, keys_, keys_, k_left_transposed, kBlock);
      for (int64_t i = 0; i < n; ++i) {
        const A* row = rows.w + i * values_;
#pragma omp simd
        for (int64_t c = 0; c < values_; ++c) near[i * values_ + c] = row[c] - origin[c];
      }
      pack_parts<O>(near + 0, n, values_, 2, w_left + 0);
    }
    for (int64_t i = first + n, cols; i < rows_; i += cols) {
      cols = std::min(rows_, (i / panel_ + 1) * panel_) - i;
      if (!kAhead) pack_queries(i, cols);
      scores_of(n, cols, k_left, q_columns + at(i, keys_), keys_, scores);
      backward_tile(n, i, cols, kAll);
      if constexpr (kMixed) {
        multiply<O>(n, values_, cols, p, panel_, h_right + i * values_, values_, rows.l, values_,
                    true);
      } else {
        multiply<O>(n, values_, cols, scores, panel_, h + i * values_, values_, rows.l, values_,
                    true);
      }
    }

    const int64_t diagonal = shape_.self ? 0 : 1;
    if (!kAhead) pack_queries(first, n);
    scores_of(n, n, k_left, q_columns + at(first, keys_), keys_, scores);
    exact_.weights({scores, n, n, panel_, factor_}, diagonal, lse + first, exact, panel_);
    solve_lower_backward<A>(n, values_, shape_.self, exact, panel_, rows.gate, rows.l, rows.h);
    if (kAhead) pack_h(first, n, rows.h);
    if (wanted) {
      for (int64_t i = 0; i < n; ++i) {
        A sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < values_; ++c) {
          sum += rows.h[i * values_ + c] * (rows.mix[i * values_ + c] - origin[c]);
        }
        delta[first + i] = sum;
      }
      backward_tile(n, first, n, diagonal);
      const A scale = static_cast<A>(shape_.scale);
      for (int64_t x = 0; x < n * keys_; ++x) dk[x] *= scale;
    }
    done(rows);
  }
  release_gemm();
  if (!wanted) return;

  const A scale = static_cast<A>(shape_.scale);
  const Buffer<A> panel(panel_ * keys_);
  for (int64_t i = 0; i < rows_; i += panel_) {
    const int64_t n = panel_of(i);
    for (int64_t x = 0; x < n * keys_; ++x) panel[x] = scale * dq[i * keys_ + x];
    pack_left_transposed<A>(panel, keys_, n, n, dq + i * keys_, keys_);
  }
}

template class DenseBlocks<float, float>;
template class DenseBlocks<Bfloat16, Bfloat16>;
template class DenseBlocks<Bfloat16, float>;
template class DenseBlocks<double, double>;

}  // namespace hopmix::kernels

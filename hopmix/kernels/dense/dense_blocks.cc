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
  const Buffer<O> columns(panels() * panel_ * keys_), left(panel_ * keys_), q_left(most * keys_);
  const Buffer<O> p(kMixed ? most * panel_ : 0), w_left(kMixed ? most * values_ : 0);
  // Later blocks read w, rounded if products do.
  const Buffer<O> right(kMixed ? rows_ * values_ : 0);
  const Buffer<A> all(kMixed ? most * values_ : rows_ * values_), mix(most * values_);
  const Buffer<A> scores(most * panel_), largest(most), sum(most), gate(most), lse(most);
  for (int64_t j = 0; j < rows_; j += panel_) {
    pack_rows_as_columns<O>(k, j, std::min(panel_, rows_ - j), keys_, left + 0,
                            columns + column(j, keys_), panel_);
  }

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
      scores_of(n, cols, q_left, columns + column(j, keys_), keys_, scores);
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

    for_strips<O>(n, [&](int64_t s, int64_t strip) {
      A* tile = scores + s * panel_;
      scores_of(strip, s + strip, q_left + s * keys_, columns + column(first, keys_), keys_, tile);
      exact_.softmax({tile, strip, s + strip, panel_, factor_}, s + (shape_.self ? 1 : 0), tile,
                     panel_, largest + s, sum + s, rows.mix + s * values_, values_);
    });
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
  // By row of the sequence: h, which earlier blocks read, and what is packed for all tiles.
  const int64_t in_panels = panels() * panel_;
  const Buffer<A> h(kMixed ? matrix : rows_ * values_), lse(rows_), delta(rows_);
  const Buffer<O> q_columns(in_panels * keys_), q_right(wanted ? rows_ * keys_ : 0);
  const Buffer<O> h_columns(wanted ? in_panels * parts : 0), h_right(kMixed ? rows_ * values_ : 0);
  // By row of the block.
  const Buffer<A> gate(most), w(matrix), mix(matrix), l(matrix), dk(wanted ? most * keys_ : 0);
  const Buffer<O> k_left(most * keys_), k_left_transposed(kBlock * keys_), w_left(most * parts);
  // Of a tile.
  const Buffer<O> left(std::max(panel_ * keys_, kMixed ? most * parts : 0));
  const Buffer<O> p(kMixed ? tile : 0), ds(kMixed && wanted ? tile : 0);
  const Buffer<O> ds_pairs(kMixed ? tile : 0);
  const Buffer<A> scores(tile), grad(wanted ? tile : 0), exact(most * most);
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
                            h + (kMixed ? 0 : first * values_),
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

  for (int64_t i = 0; i < rows_; i += panel_) {
    const int64_t n = panel_of(i);
    O* rows = kMixed || !wanted ? left + 0 : q_right + i * keys_;
    pack_left<O>(q, i, n, keys_, rows);
    pack_columns<O>(rows, n, keys_, q_columns + column(i, keys_), panel_);
    if (kMixed && wanted) pack_right<O>(rows, n, keys_, q_right + i * keys_);
  }
  // h of rows [i, i + n), found at x, for later tiles.
  const auto pack_h = [&](int64_t i, int64_t n, const A* x) {
    if constexpr (kMixed) {
      pack_left<O>(MatrixView<A>{x, n, values_, values_}, 0, n, values_, left);
      pack_right<O>(left, n, values_, h_right + i * values_);
      if (!wanted) return;
      pack_parts<O>(x, n, values_, 1, left + 0);
      pack_columns<O>(left, n, parts, h_columns + column(i, parts), panel_);
    } else if (wanted) {
      pack_columns<O>(x, n, values_, h_columns + column(i, parts), panel_);
    }
  };
  O *weights, *d_scores, *right;
  const O* h_rows;
  if constexpr (kMixed) {
    weights = p, d_scores = ds, right = ds_pairs, h_rows = h_right;
  } else {
    weights = scores, d_scores = right = grad, h_rows = h;
  }

  // Of the tile of rows [s, s + m) of the block and queries [i, i + cols), whose scores are made
  // and which begins at column `to`: the weights, the gradients of the scores, and dk through them.
  const auto score_gradients_of = [&](int64_t s, int64_t m, int64_t i, int64_t cols, int64_t to,
                                      int64_t diagonal) {
    const int64_t at = s * panel_ + to;
    scores_of(m, cols, w_left + s * parts, h_columns + column(i, parts), parts, grad + at);
    mixed_.softmax_backward({scores + at, m, cols, panel_, factor_}, diagonal, lse + i, delta + i,
                            grad + at, weights + at, d_scores + at,
                            right + right_index<O>(s, to, panel_));
    multiply<O>(m, keys_, cols, d_scores + at, panel_, q_right + i * keys_, keys_, dk + s * keys_,
                keys_, true);
  };
  const auto add_dq = [&](int64_t depth, int64_t i, int64_t cols, int64_t from) {
    multiply<O>(keys_, cols, depth, k_left_transposed, kBlock,
                right + right_index<O>(0, from, panel_), panel_,
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
      scores_of(n, cols, k_left, q_columns + column(i, keys_), keys_, scores);
      if (wanted) {
        score_gradients_of(0, n, i, cols, 0, kAll);
        add_dq(n, i, cols, 0);
      } else {
        exact_.weights({scores, n, cols, panel_, factor_}, kAll, lse + i, scores, panel_);
        if constexpr (kMixed) {
          pack_left<O>(MatrixView<A>{scores, n, cols, panel_}, 0, n, panel_, p + 0);
        }
      }
      multiply<O>(n, values_, cols, weights, panel_, h_rows + i * values_, values_, rows.l, values_,
                  true);
    }

    const int64_t diagonal = shape_.self ? 0 : 1;
    for_strips<O>(n, [&](int64_t s, int64_t strip) {
      A* own = scores + s * panel_ + s;
      scores_of(strip, n - s, k_left + s * keys_, q_columns + column(first + s, keys_), keys_, own);
      exact_.weights({own, strip, n - s, panel_, factor_}, diagonal, lse + first + s,
                     exact + s * n + s, n);
    });
    solve_lower_backward<A>(n, values_, shape_.self, exact, n, rows.gate, rows.l, rows.h);
    pack_h(first, n, rows.h);
    if (wanted) {
      for (int64_t i = 0; i < n; ++i) {
        A sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < values_; ++c) {
          sum += rows.h[i * values_ + c] * (rows.mix[i * values_ + c] - origin[c]);
        }
        delta[first + i] = sum;
      }
      for_strips<O>(n, [&](int64_t s, int64_t strip) {
        score_gradients_of(s, strip, first + s, n - s, s, diagonal);
      });
      for_strips<O>(n, [&](int64_t s, int64_t strip) { add_dq(s + strip, first + s, strip, s); });
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

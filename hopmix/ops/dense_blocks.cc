#include "hopmix/ops/dense_blocks.h"

namespace hopmix::ops {
namespace {

using kernels::Bfloat16;

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

}  // namespace

template <typename T, typename O, typename Products>
void DenseBlocks<T, O, Products>::solve_block(int64_t first, int64_t n, const A* p, const A* sum,
                                              const A* gate, A* w, A* mix) const {
  A* solved = w + first * values_;
  for (int64_t s = 0; s < n; s += kSmall) {
    const A* row = p + s * panel_;
    A* acc = mix + (first + s) * values_;
    if (s > 0) {
      Products::multiply(kSmall, values_, s, row, panel_, solved, values_, acc, values_, true);
    }
    exact_.substitute(kSmall, values_, shape_.self, row + s, panel_, sum + s, gate + first + s, acc,
                      solved + s * values_);
  }
}

template <typename T, typename O, typename Products>
void DenseBlocks<T, O, Products>::forward(const MatrixView<T>& q, const MatrixView<T>& k,
                                          const A* gate, A* w, A* mix, A* lse) {
  constexpr A kInfinity = std::numeric_limits<A>::infinity();
  const Buffer<O> columns(panels() * panel_ * keys_), left(panel_ * keys_), p(kBlock * panel_);
  const Buffer<O> w_left(kMixed ? kBlock * values_ : 0);
  const Buffer<O> right(kMixed ? rows_ * values_ : 0);  // w, rounded
  const Buffer<A> scores(std::min(kBlock, rows_) * panel_), largest(kBlock), sum(kBlock);
  for (int64_t i = 0; i < rows_; i += panel_) {
    const int64_t n = std::min(panel_, rows_ - i);
    pack_left<O>(k, i, n, keys_, left);
    pack_columns<O>(left, n, keys_, columns + column(i, keys_), panel_);
  }

  for (int64_t first = 0; first < rows_; first += kBlock) {
    const int64_t n = std::min(kBlock, rows_ - first);
    A* acc = mix + first * values_;
    pack_left<O>(q, first, n, keys_, left);
    std::fill_n(largest + 0, n, -kInfinity);
    std::fill_n(sum + 0, n, A{0});
    std::fill_n(acc, n * values_, A{0});

    for (int64_t j = 0; j < first; j += panel_) {
      const int64_t cols = std::min(panel_, first - j);
      scores_of(n, cols, left, columns + column(j, keys_), keys_, scores);
      mixed_.softmax({scores, n, cols, panel_, factor_}, kernels::kNoDiagonal, p, panel_, largest,
                     sum, acc, values_);
      if constexpr (kMixed) {
        Products::multiply(n, values_, cols, p, panel_, right + j * values_, values_, acc, values_,
                           true);
      } else {
        Products::multiply(n, values_, cols, p, panel_, w + j * values_, values_, acc, values_,
                           true);
      }
    }

    scores_of(n, n, left, columns + column(first, keys_), keys_, scores);
    exact_.softmax({scores, n, n, panel_, factor_}, shape_.self ? 1 : 0, scores, panel_, largest,
                   sum, acc, values_);
    solve_block(first, n, scores, sum, gate, w, mix);
    for (int64_t i = 0; i < n; ++i) {
      const bool reads = sum[i] != 0 && first + i < shape_.length;
      lse[first + i] = reads ? largest[i] + std::log2(sum[i]) : kInfinity;
    }
    if constexpr (kMixed) {
      pack_left<O>(MatrixView<A>{w, rows_, values_, values_}, first, n, values_, w_left);
      pack_right<O>(w_left, n, values_, right + first * values_);
    }
  }
  Products::release();
}

template <typename T, typename O, typename Products>
void DenseBlocks<T, O, Products>::solve_block_backward(int64_t first, int64_t n, const A* p,
                                                       const A* gate, A* l, A* h) const {
  for (int64_t s = n - kSmall; s >= 0; s -= kSmall) {
    const A* row = p + s * panel_;
    const int64_t later = n - s - kSmall;
    A* acc = l + (first + s) * values_;
    if (later > 0) {
      Products::multiply(kSmall, values_, later, row + s + kSmall, panel_,
                         h + (first + s + kSmall) * values_, values_, acc, values_, true);
    }
    exact_.substitute_backward(kSmall, values_, shape_.self, row + s, panel_, gate + first + s, acc,
                               h + (first + s) * values_);
  }
}

template <typename T, typename O, typename Products>
void DenseBlocks<T, O, Products>::backward(const MatrixView<T>& q, const MatrixView<T>& k,
                                           const A* gate, const A* w, const A* mix, const A* lse,
                                           A* l, A* h, A* dq, A* dk) {
  const bool wanted = dq != nullptr;
  const int64_t tile = std::min(kBlock, rows_) * panel_;
  const MatrixView<A> h_view{h, rows_, values_, values_};
  const Buffer<O> q_columns(panels() * panel_ * keys_), h_right(kMixed ? rows_ * values_ : 0);
  const Buffer<O> q_right(wanted ? rows_ * keys_ : 0);
  const int64_t parts = kParts<O, A> * values_;  // width of the factors of d
  const Buffer<O> h_columns(wanted ? panels() * panel_ * parts : 0);
  const Buffer<A> dq_columns(wanted ? panels() * panel_ * keys_ : 0), delta(rows_);
  const Buffer<O> k_left(kBlock * keys_), k_left_transposed(kBlock * keys_);
  const Buffer<O> w_left(kBlock * parts), p(tile), ds(tile), ds_pairs(kMixed ? tile : 0);
  const Buffer<O> left(std::max(panel_ * keys_, kBlock * parts));
  const Buffer<A> scores(tile), grad(wanted ? tile : 0), exact(tile);
  // d_ij - sum_j P_ij d_ij is the same for any origin of w and mix. Where a token hands on nearly
  // all that it reads, w is large and nearly constant; its mean as the origin keeps the digits that
  // differ.
  const Buffer<A> origin(values_), near(wanted ? kBlock * values_ : 0);
  if (wanted) {
    std::fill_n(origin + 0, values_, A{0});
    for (int64_t i = 0; i < shape_.length; ++i) {
#pragma omp simd
      for (int64_t c = 0; c < values_; ++c) origin[c] += w[i * values_ + c];
    }
    for (int64_t c = 0; c < values_; ++c) origin[c] /= static_cast<A>(shape_.length);
  }

  for (int64_t i = 0; i < rows_; i += panel_) {
    const int64_t n = std::min(panel_, rows_ - i);
    pack_left<O>(q, i, n, keys_, left);
    pack_columns<O>(left, n, keys_, q_columns + column(i, keys_), panel_);
    if (wanted) pack_right<O>(left, n, keys_, q_right + i * keys_);
  }
  if (wanted) {
    std::fill_n(dq_columns + 0, panels() * panel_ * keys_, A{0});
    std::fill_n(dk, rows_ * keys_, A{0});
  }

  // The tile of keys [first, first + n) and queries [i, i + cols): its weights and, if wanted, the
  // gradients of q and k through it.
  const auto backward_tile = [&](int64_t first, int64_t n, int64_t i, int64_t cols,
                                 int64_t diagonal) {
    const kernels::ScoreTile<A> t{scores, n, cols, panel_, factor_};
    if (!wanted) {
      if constexpr (kMixed) {
        exact_.weights(t, diagonal, lse + i, exact, panel_);
        pack_left<O>(MatrixView<A>{exact, n, cols, panel_}, 0, n, panel_, p + 0);
      } else {
        exact_.weights(t, diagonal, lse + i, p, panel_);
      }
      return;
    }
    scores_of(n, cols, w_left, h_columns + column(i, parts), parts, grad);
    mixed_.softmax_backward(t, diagonal, lse + i, delta + i, grad, p, ds, ds_pairs);
    Products::multiply(n, keys_, cols, ds, panel_, q_right + i * keys_, keys_, dk + first * keys_,
                       keys_, true);
    const O* right = kMixed ? ds_pairs : ds;
    Products::multiply(keys_, cols, n, k_left_transposed, kBlock, right, panel_,
                       dq_columns + (i / panel_ * keys_ * panel_ + i % panel_), panel_, true);
  };

  for (int64_t first = (rows_ - 1) / kBlock * kBlock; first >= 0; first -= kBlock) {
    const int64_t n = std::min(kBlock, rows_ - first);
    pack_left<O>(k, first, n, keys_, k_left);
    if (wanted) {
      pack_left_transposed<O>(k_left, n, keys_, keys_, k_left_transposed, kBlock);
      for (int64_t i = 0; i < n; ++i) {
        const A* row = w + (first + i) * values_;
#pragma omp simd
        for (int64_t c = 0; c < values_; ++c) near[i * values_ + c] = row[c] - origin[c];
      }
      pack_parts<O>(near + 0, n, values_, 2, w_left);
    }
    for (int64_t i = first + n, cols; i < rows_; i += cols) {
      cols = std::min(rows_, (i / panel_ + 1) * panel_) - i;
      scores_of(n, cols, k_left, q_columns + column(i, keys_), keys_, scores);
      backward_tile(first, n, i, cols, kAll);
      A* acc = l + first * values_;
      if constexpr (kMixed) {
        Products::multiply(n, values_, cols, p, panel_, h_right + i * values_, values_, acc,
                           values_, true);
      } else {
        Products::multiply(n, values_, cols, p, panel_, h + i * values_, values_, acc, values_,
                           true);
      }
    }

    const int64_t diagonal = shape_.self ? 0 : 1;
    scores_of(n, n, k_left, q_columns + column(first, keys_), keys_, scores);
    exact_.weights({scores, n, n, panel_, factor_}, diagonal, lse + first, exact, panel_);
    solve_block_backward(first, n, exact, gate, l, h);
    if constexpr (kMixed) {
      pack_left<O>(h_view, first, n, values_, left);
      pack_right<O>(left, n, values_, h_right + first * values_);
    }
    if (!wanted) continue;
    pack_parts<O>(h + first * values_, n, values_, 1, left);
    pack_columns<O>(left, n, parts, h_columns + column(first, parts), panel_);
    for (int64_t i = first; i < first + n; ++i) {
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < values_; ++c) {
        sum += h[i * values_ + c] * (mix[i * values_ + c] - origin[c]);
      }
      delta[i] = sum;
    }
    backward_tile(first, n, first, n, diagonal);
  }
  Products::release();
  if (!wanted) return;

  const A scale = static_cast<A>(shape_.scale);
  for (int64_t i = 0; i < rows_; i += panel_) {
    const int64_t n = std::min(panel_, rows_ - i);
    pack_left_transposed<A>(dq_columns + i * keys_, keys_, n, panel_, dq + i * keys_, keys_);
  }
#pragma omp simd
  for (int64_t x = 0; x < rows_ * keys_; ++x) {
    dq[x] *= scale;
    dk[x] *= scale;
  }
}

template class DenseBlocks<float, float, OneDnnProducts>;
template class DenseBlocks<Bfloat16, Bfloat16, OneDnnProducts>;
template class DenseBlocks<Bfloat16, float, OneDnnProducts>;
template class DenseBlocks<float, float, LoopProducts<float>>;
template class DenseBlocks<Bfloat16, float, LoopProducts<float>>;
template class DenseBlocks<double, double, LoopProducts<double>>;

}  // namespace hopmix::ops

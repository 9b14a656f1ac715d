#include "hopmix/ops/dense_blocks.h"

namespace hopmix::ops {
namespace {

using kernels::Bfloat16;

template <typename O, typename S>
O convert(S x) {
  if constexpr (std::is_same_v<O, S>) {
    return x;
  } else if constexpr (std::is_same_v<S, Bfloat16>) {
    return static_cast<O>(static_cast<float>(x));
  } else {
    return static_cast<O>(x);
  }
}

// Calls f(i, c, x) for the entries [first, first + n) x [0, width) of a matrix, i from 0.
template <typename O, typename S, typename F>
void for_entries(const MatrixView<S>& x, int64_t first, int64_t n, int64_t width, const F& f) {
  const int64_t inside = std::clamp<int64_t>(x.rows - first, 0, n);
  for (int64_t i = 0; i < inside; ++i) {
    const S* row = x.data + (first + i) * x.stride;
    for (int64_t c = 0; c < x.cols; ++c) f(i, c, convert<O>(row[c]));
    for (int64_t c = x.cols; c < width; ++c) f(i, c, O{});
  }
  for (int64_t i = inside; i < n; ++i) {
    for (int64_t c = 0; c < width; ++c) f(i, c, O{});
  }
}

// Rows [first, first + n) as a left factor [n, width].
template <typename O, typename S>
void pack_left(const MatrixView<S>& x, int64_t first, int64_t n, int64_t width, O* out) {
  for_entries<O>(x, first, n, width, [=](int64_t i, int64_t c, O y) { out[i * width + c] = y; });
}

// The same rows, transposed, as a left factor [width, ld].
template <typename O, typename S>
void pack_left_transposed(const MatrixView<S>& x, int64_t first, int64_t n, int64_t width, O* out,
                          int64_t ld) {
  for_entries<O>(x, first, n, width, [=](int64_t i, int64_t c, O y) { out[c * ld + i] = y; });
}

// The same rows of a right factor [tokens, width].
template <typename O, typename S>
void pack_right(const MatrixView<S>& x, int64_t first, int64_t n, int64_t width, O* out) {
  for_entries<O>(x, first, n, width,
                 [=](int64_t i, int64_t c, O y) { out[right_index<O>(first + i, c, width)] = y; });
}

// The same rows, transposed, as columns of a right factor [width, ld].
template <typename O, typename S>
void pack_columns(const MatrixView<S>& x, int64_t first, int64_t n, int64_t width, O* out,
                  int64_t ld) {
  for_entries<O>(x, first, n, width,
                 [=](int64_t i, int64_t c, O y) { out[right_index<O>(c, i, ld)] = y; });
}

// d_ij = h_i . w_j loses most of its digits when the mean over j is taken off it, so if O is
// shorter than S each factor is split in two, x = high + low, and three products make one of three
// times the width: [high, high, low] . [high, low, high].
template <typename O, typename S>
constexpr int64_t kParts = std::is_same_v<O, S> ? 1 : 3;

template <typename O, typename S, typename Place>
void pack_parts(const MatrixView<S>& x, int64_t first, int64_t n, int64_t width, int low_part,
                const Place& place) {
  for_entries<S>(x, first, n, width, [&](int64_t i, int64_t c, S y) {
    const O high = convert<O>(y);
    if constexpr (kParts<O, S> == 1) {
      place(i, c, high);
    } else {
      const O low = convert<O>(y - convert<S>(high));
      for (int part = 0; part < 3; ++part)
        place(i, part * width + c, part == low_part ? low : high);
    }
  });
}

}  // namespace

template <typename T, typename O, typename Products>
void DenseBlocks<T, O, Products>::solve_block(int64_t first, int64_t n, const A* p, const A* sum,
                                              const A* gate, A* w, A* mix) const {
  A* solved = w + first * values_;
  for (int64_t s = 0; s < n; s += kSmall) {
    const A* row = p + s * kPanel;
    A* acc = mix + (first + s) * values_;
    if (s > 0) {
      Products::multiply(kSmall, values_, s, row, kPanel, solved, values_, acc, values_, true);
    }
    exact_.substitute(kSmall, values_, shape_.self, row + s, kPanel, sum + s, gate + first + s, acc,
                      solved + s * values_);
  }
}

template <typename T, typename O, typename Products>
void DenseBlocks<T, O, Products>::forward(const MatrixView<T>& q, const MatrixView<T>& k,
                                          const A* gate, A* w, A* mix, A* lse) {
  constexpr A kInfinity = std::numeric_limits<A>::infinity();
  const Buffer<O> columns(panels() * kPanel * keys_), left(kBlock * keys_), p(kBlock * kPanel);
  const Buffer<O> right(kMixed ? rows_ * values_ : 0);  // w, rounded
  const Buffer<A> scores(kBlock * kPanel), largest(kBlock), sum(kBlock);
  for (int64_t i = 0; i < rows_; i += kPanel) {
    pack_columns(k, i, std::min(kPanel, rows_ - i), keys_, columns + column(i, keys_), kPanel);
  }

  for (int64_t first = 0; first < rows_; first += kBlock) {
    const int64_t n = std::min(kBlock, rows_ - first);
    A* acc = mix + first * values_;
    pack_left<O>(q, first, n, keys_, left);
    std::fill_n(largest + 0, n, -kInfinity);
    std::fill_n(sum + 0, n, A{0});
    std::fill_n(acc, n * values_, A{0});

    for (int64_t j = 0; j < first; j += kPanel) {
      const int64_t cols = std::min(kPanel, first - j);
      scores_of(n, cols, left, columns + column(j, keys_), keys_, scores);
      mixed_.softmax({scores, n, cols, kPanel, factor_}, kernels::kNoDiagonal, p, kPanel, largest,
                     sum, acc, values_);
      if constexpr (kMixed) {
        Products::multiply(n, values_, cols, p, kPanel, right + j * values_, values_, acc, values_,
                           true);
      } else {
        Products::multiply(n, values_, cols, p, kPanel, w + j * values_, values_, acc, values_,
                           true);
      }
    }

    scores_of(n, n, left, columns + column(first, keys_), keys_, scores);
    exact_.softmax({scores, n, n, kPanel, factor_}, shape_.self ? 1 : 0, scores, kPanel, largest,
                   sum, acc, values_);
    solve_block(first, n, scores, sum, gate, w, mix);
    for (int64_t i = 0; i < n; ++i) {
      const bool reads = sum[i] > 0 && first + i < shape_.length;
      lse[first + i] = reads ? largest[i] + std::log2(sum[i]) : kInfinity;
    }
    if constexpr (kMixed) {
      pack_right<O>(MatrixView<A>{w, rows_, values_, values_}, first, n, values_, right + 0);
    }
  }
  Products::release();
}

template <typename T, typename O, typename Products>
void DenseBlocks<T, O, Products>::solve_block_backward(int64_t first, int64_t n, const A* p,
                                                       const A* gate, A* l, A* h) const {
  for (int64_t s = n - kSmall; s >= 0; s -= kSmall) {
    const A* row = p + s * kPanel;
    const int64_t later = n - s - kSmall;
    A* acc = l + (first + s) * values_;
    if (later > 0) {
      Products::multiply(kSmall, values_, later, row + s + kSmall, kPanel,
                         h + (first + s + kSmall) * values_, values_, acc, values_, true);
    }
    exact_.substitute_backward(kSmall, values_, shape_.self, row + s, kPanel, gate + first + s, acc,
                               h + (first + s) * values_);
  }
}

template <typename T, typename O, typename Products>
void DenseBlocks<T, O, Products>::backward(const MatrixView<T>& q, const MatrixView<T>& k,
                                           const A* gate, const A* w, const A* mix, const A* lse,
                                           A* l, A* h, A* dq, A* dk) {
  const bool wanted = dq != nullptr;
  const int64_t tile = kBlock * kPanel;
  const MatrixView<A> w_view{w, rows_, values_, values_}, h_view{h, rows_, values_, values_};
  const Buffer<O> q_columns(panels() * kPanel * keys_), h_right(kMixed ? rows_ * values_ : 0);
  const Buffer<O> q_right(wanted ? rows_ * keys_ : 0);
  const int64_t parts = kParts<O, A> * values_;  // width of the factors of d
  const Buffer<O> h_columns(wanted ? panels() * kPanel * parts : 0);
  const Buffer<A> dq_columns(wanted ? panels() * kPanel * keys_ : 0), delta(rows_);
  const Buffer<O> k_left(kBlock * keys_), k_left_transposed(kBlock * keys_);
  const Buffer<O> w_left(kBlock * parts), p(tile), ds(tile), ds_pairs(kMixed ? tile : 0);
  const Buffer<A> scores(tile), grad(wanted ? tile : 0), exact(tile);

  for (int64_t i = 0; i < rows_; i += kPanel) {
    const int64_t n = std::min(kPanel, rows_ - i);
    pack_columns(q, i, n, keys_, q_columns + column(i, keys_), kPanel);
  }
  if (wanted) {
    pack_right<O>(q, 0, rows_, keys_, q_right + 0);
    std::fill_n(dq_columns + 0, panels() * kPanel * keys_, A{0});
    std::fill_n(dk, rows_ * keys_, A{0});
  }

  // The tile of keys [first, first + n) and queries [i, i + cols): its weights and, if wanted, the
  // gradients of q and k through it.
  const auto backward_tile = [&](int64_t first, int64_t n, int64_t i, int64_t cols,
                                 int64_t diagonal) {
    const kernels::ScoreTile<A> t{scores, n, cols, kPanel, factor_};
    if (!wanted) {
      if constexpr (kMixed) {
        exact_.weights(t, diagonal, lse + i, exact, kPanel);
        pack_left<O>(MatrixView<A>{exact, n, cols, kPanel}, 0, n, kPanel, p + 0);
      } else {
        exact_.weights(t, diagonal, lse + i, p, kPanel);
      }
      return;
    }
    scores_of(n, cols, w_left, h_columns + column(i, parts), parts, grad);
    mixed_.softmax_backward(t, diagonal, lse + i, delta + i, grad, p, ds, ds_pairs);
    Products::multiply(n, keys_, cols, ds, kPanel, q_right + i * keys_, keys_, dk + first * keys_,
                       keys_, true);
    const O* right = kMixed ? ds_pairs : ds;
    Products::multiply(keys_, cols, n, k_left_transposed, kBlock, right, kPanel,
                       dq_columns + (i / kPanel * keys_ * kPanel + i % kPanel), kPanel, true);
  };

  for (int64_t first = (rows_ - 1) / kBlock * kBlock; first >= 0; first -= kBlock) {
    const int64_t n = std::min(kBlock, rows_ - first);
    pack_left<O>(k, first, n, keys_, k_left + 0);
    if (wanted) {
      pack_left_transposed<O>(k, first, n, keys_, k_left_transposed + 0, kBlock);
      pack_parts<O>(w_view, first, n, values_, 2,
                    [&](int64_t i, int64_t c, O y) { w_left[i * parts + c] = y; });
    }
    for (int64_t i = first + n, cols; i < rows_; i += cols) {
      cols = std::min(rows_, (i / kPanel + 1) * kPanel) - i;
      scores_of(n, cols, k_left, q_columns + column(i, keys_), keys_, scores);
      backward_tile(first, n, i, cols, kAll);
      A* acc = l + first * values_;
      if constexpr (kMixed) {
        Products::multiply(n, values_, cols, p, kPanel, h_right + i * values_, values_, acc,
                           values_, true);
      } else {
        Products::multiply(n, values_, cols, p, kPanel, h + i * values_, values_, acc, values_,
                           true);
      }
    }

    const int64_t diagonal = shape_.self ? 0 : 1;
    scores_of(n, n, k_left, q_columns + column(first, keys_), keys_, scores);
    exact_.weights({scores, n, n, kPanel, factor_}, diagonal, lse + first, exact, kPanel);
    solve_block_backward(first, n, exact, gate, l, h);
    if constexpr (kMixed) pack_right<O>(h_view, first, n, values_, h_right + 0);
    if (!wanted) continue;
    O* columns = h_columns + column(first, parts);
    pack_parts<O>(h_view, first, n, values_, 1,
                  [=](int64_t i, int64_t c, O y) { columns[right_index<O>(c, i, kPanel)] = y; });
    for (int64_t i = first; i < first + n; ++i) {
      A sum = 0;
      for (int64_t c = 0; c < values_; ++c) sum += h[i * values_ + c] * mix[i * values_ + c];
      delta[i] = sum;
    }
    backward_tile(first, n, first, n, diagonal);
  }
  Products::release();
  if (!wanted) return;

  const A scale = static_cast<A>(shape_.scale);
  for (int64_t i = 0; i < rows_; ++i) {
    const A* from = dq_columns + (i / kPanel * keys_ * kPanel + i % kPanel);
    for (int64_t c = 0; c < keys_; ++c) {
      dq[i * keys_ + c] = scale * from[c * kPanel];
      dk[i * keys_ + c] *= scale;
    }
  }
}

template class DenseBlocks<float, float, OneDnnProducts>;
template class DenseBlocks<Bfloat16, Bfloat16, OneDnnProducts>;
template class DenseBlocks<Bfloat16, float, OneDnnProducts>;
template class DenseBlocks<float, float, LoopProducts<float>>;
template class DenseBlocks<Bfloat16, float, LoopProducts<float>>;
template class DenseBlocks<double, double, LoopProducts<double>>;

}  // namespace hopmix::ops

#include "hopmix/kernels/dense/attention_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hopmix/kernels/dense/triangular.h"

namespace hopmix::kernels {
namespace {

constexpr int64_t kPanel = 256;

template <typename O>
bool all_finite(const O* x, int64_t count) {
  using A = Accumulator<O>;
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < count; ++c) sum += convert<A>(x[c]) * 0;
  return sum == 0;
}

}  // namespace

template <typename T, typename O>
AttentionBlocks<T, O>::AttentionBlocks(const MatrixView<T>& k, const MatrixView<T>& v, double scale)
    : rows_(padded(k.rows)),
      keys_(padded(k.cols)),
      values_(padded(std::max<int64_t>(v.cols, 1))),
      panel_(std::clamp(rows_, kTileLanes, kPanel)),
      factor_(static_cast<A>(std::abs(scale) * 1.44269504088896340736)),
      sign_(static_cast<A>((scale > 0) - (scale < 0))),
      columns_((rows_ + panel_ - 1) / panel_ * panel_ * keys_),
      right_(rows_ * values_),
      finite_(rows_ / kTileLanes) {
  const Buffer<O> left(panel_ * std::max(keys_, values_));
  for (int64_t j = 0; j < rows_; j += panel_) {
    const int64_t n = std::min(panel_, rows_ - j);
    pack_left<O>(k, j, n, keys_, left);
    pack_columns<O>(left, n, keys_, columns_ + column(j), panel_);
    pack_left<O>(v, j, n, values_, left);
    pack_right<O>(left, n, values_, right_ + j * values_);
  }
  for_strips<O>(rows_, [&](int64_t s, int64_t n) {
    finite_[s / kTileLanes] = all_finite(right_ + s * values_, n * values_);
  });
}

template <typename T, typename O>
AttentionBlocks<T, O>::Block::Block(const AttentionBlocks& of) : stride(of.values_) {
  const int64_t rows = std::min(kAttentionBlock, of.rows_);
  q = Buffer<O>(rows * of.keys_);
  p = Buffer<O>(kMixed ? rows * of.panel_ : 0);
  scores = Buffer<A>(rows * of.panel_ + kTileLanes);
  largest = Buffer<A>(rows);
  sum = Buffer<A>(rows);
  mix = Buffer<A>(rows * of.values_);
  lse = Buffer<A>(rows);
}

// Adds the block's own triangle, of which a strip's last columns reach into later rows with weight
// 0. Infinity and NaN would survive that: they are taken out of the product and put in one by one.
template <typename T, typename O>
void AttentionBlocks<T, O>::add_diagonal(int64_t first, int64_t rows, const O* p, A* mix) const {
  for_strips<O>(rows, [&](int64_t s, int64_t n) {
    const O* right = right_ + first * values_;
    const bool finite = finite_[(first + s) / kTileLanes];
    const int64_t begin = s * values_, end = (s + n) * values_;
    const Buffer<O> cleaned(finite ? 0 : end);
    if (!finite) {
      std::copy_n(right, end, cleaned + 0);
      for (int64_t x = begin; x < end; ++x) {
        if (!std::isfinite(convert<A>(right[x]))) cleaned[x] = O{};
      }
    }
    multiply<O>(n, values_, s + n, p + s * panel_, panel_, finite ? right : cleaned + 0, values_,
                mix + begin, values_, /*add=*/true);
    for (int64_t i = s; i < s + n && !finite; ++i) {
      for (int64_t j = s; j <= i; ++j) {
        for (int64_t c = 0; c < values_; ++c) {
          const A value = convert<A>(right[right_index<O>(j, c, values_)]);
          if (std::isfinite(value)) continue;
          mix[i * values_ + c] += convert<A>(p[i * panel_ + j]) * value;
        }
      }
    }
  });
}

template <typename T, typename O>
void AttentionBlocks<T, O>::forward(const MatrixView<T>& q, int64_t first, bool self, Block& out,
                                    TopScores<A>* best) const {
  const int64_t n = std::min(kAttentionBlock, rows_ - first);
  pack_left<O>(q, first, n, keys_, out.q);
  if (sign_ != 1) {
    for (int64_t x = 0; x < n * keys_; ++x) out.q[x] = convert<O>(sign_ * convert<A>(out.q[x]));
  }
  std::fill_n(out.largest + 0, n, -std::numeric_limits<A>::infinity());
  std::fill_n(out.sum + 0, n, A{0});
  std::fill_n(out.mix + 0, n * values_, A{0});
  O* p;
  if constexpr (kMixed) {
    p = out.p;
  } else {
    p = out.scores;
  }
  if (best != nullptr) best->clear();
  for (int64_t from = 0; from < first; from += panel_) {
    const ScoreTile<A> tile{out.scores, n, std::min(panel_, first - from), panel_, factor_};
    multiply<O>(n, tile.cols, keys_, out.q, keys_, columns_ + column(from), panel_, out.scores,
                panel_, /*add=*/false);
    if (best != nullptr) best->offer(tile, kNoDiagonal, from);
    tiles_.softmax(tile, kNoDiagonal, p, panel_, out.largest, out.sum, out.mix, values_);
    multiply<O>(n, values_, tile.cols, p, panel_, right_ + from * values_, values_, out.mix,
                values_, /*add=*/true);
  }
  for_strips<O>(n, [&](int64_t s, int64_t rows) {
    multiply<O>(rows, s + rows, keys_, out.q + s * keys_, keys_, columns_ + column(first), panel_,
                out.scores + s * panel_, panel_, /*add=*/false);
  });
  if (best != nullptr) best->offer({out.scores, n, n, panel_, factor_}, self ? 1 : 0, first);
  for_strips<O>(n, [&](int64_t s, int64_t rows) {
    tiles_.softmax({out.scores + s * panel_, rows, s + rows, panel_, factor_}, s + 1,
                   p + s * panel_, panel_, out.largest + s, out.sum + s, out.mix + s * values_,
                   values_);
  });
  add_diagonal(first, n, p, out.mix);
  for (int64_t i = 0; i < n; ++i) {
    const A inverse = 1 / out.sum[i];
    A* mix = out.mix + i * values_;
#pragma omp simd
    for (int64_t c = 0; c < values_; ++c) mix[c] *= inverse;
    out.lse[i] = out.largest[i] + std::log2(out.sum[i]);
  }
}

// With d = dLoss/dP: ds_ij = P_ij (d_ij - sum_j P_ij d_ij), d_ij = g_i . v_j, and the sum is
// g_i . o_i. Tiles are transposed (rows are keys), so that no product needs the transpose of one;
// the gradient of q is made transposed.
template <typename T, typename O>
void attention_head_backward(const AttentionHead<T>& head, Accumulator<T>* dq, Accumulator<T>* dk,
                             Accumulator<T>* dv) {
  using A = Accumulator<T>;
  constexpr bool kMixed = !std::is_same_v<O, A>;
  const int64_t length = head.q.rows, rows = padded(length);
  const int64_t keys = padded(head.q.cols), values = padded(head.v.cols);
  const int64_t panel = std::min(kPanel, rows), most = std::min(kAttentionBlock, rows);
  const int64_t panels = (rows + panel - 1) / panel * panel;
  const A factor = static_cast<A>(head.scale * 1.44269504088896340736);
  const TileTable<A, O> loops = tiles<A, O>();

  // Of queries: as columns in panels [width, panel], and as rows.
  const Buffer<O> q_columns(panels * keys), g_columns(panels * values);
  const Buffer<O> q_right(rows * keys), g_right(rows * values);
  const Buffer<A> lse(rows), delta(rows);
  // Of a block of keys.
  const Buffer<O> k_left(most * keys), k_turned(keys * most), v_left(most * values);
  // Of a tile.
  const Buffer<A> scores(most * panel), grad(most * panel);
  const Buffer<O> p(kMixed ? most * panel : 0), ds(p ? most * panel : 0),
      pairs(p ? most * panel : 0);
  O *weights, *d_scores, *right;
  if constexpr (kMixed) {
    weights = p, d_scores = ds, right = pairs;
  } else {
    weights = scores, d_scores = right = grad;
  }

  const auto at = [&](int64_t i, int64_t width) {
    return i / panel * width * panel + right_index<O>(0, i % panel, panel);
  };
  {
    const Buffer<O> left(kMixed ? panel * std::max(keys, values) : 0);
    const auto pack = [&](const MatrixView<T>& x, int64_t i, int64_t n, int64_t width, O* columns,
                          O* as_right) {
      O* rows_of = kMixed ? left + 0 : as_right + i * width;
      pack_left<O>(x, i, n, width, rows_of);
      if (kMixed) pack_right<O>(rows_of, n, width, as_right + i * width);
      pack_columns<O>(rows_of, n, width, columns + at(i, width), panel);
    };
    for (int64_t i = 0; i < rows; i += panel) {
      pack(head.q, i, std::min(panel, rows - i), keys, q_columns, q_right);
      pack(head.grad_o, i, std::min(panel, rows - i), values, g_columns, g_right);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    A sum = 0;
    if (i < length) {
      const T* g = head.grad_o.data + i * head.grad_o.stride;
      const A* mix = head.mix + i * head.grad_o.stride;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < head.v.cols; ++c) sum += static_cast<A>(g[c]) * mix[c];
    }
    delta[i] = sum;
    lse[i] = i < length ? head.lse[i * head.lse_stride] : std::numeric_limits<A>::infinity();
  }
  const Buffer<A> dq_turned(panels * keys);
  std::fill_n(dq_turned + 0, panels * keys, A{0});

  for (int64_t first = 0; first < rows; first += kAttentionBlock) {
    const int64_t n = std::min(kAttentionBlock, rows - first);
    pack_left<O>(head.k, first, n, keys, k_left);
    pack_left<O>(head.v, first, n, values, v_left);
    pack_left_transposed<O>(k_left, n, keys, keys, k_turned, most);

    // Keys [first + s, first + s + rows) and queries [i, i + cols), which lie in one panel.
    const auto tile = [&](int64_t s, int64_t tile_rows, int64_t i, int64_t cols, int64_t to,
                          int64_t diagonal) {
      A *score = scores + s * panel + to, *d = grad + s * panel + to;
      multiply<O>(tile_rows, cols, keys, k_left + s * keys, keys, q_columns + at(i, keys), panel,
                  score, panel, /*add=*/false);
      multiply<O>(tile_rows, cols, values, v_left + s * values, values, g_columns + at(i, values),
                  panel, d, panel, /*add=*/false);
      O *w = weights + s * panel + to, *d_score = d_scores + s * panel + to;
      loops.softmax_backward({score, tile_rows, cols, panel, factor}, diagonal, lse + i, delta + i,
                             d, w, d_score, right + right_index<O>(s, to, panel));
      multiply<O>(tile_rows, values, cols, w, panel, g_right + i * values, values,
                  dv + (first + s) * values, values, /*add=*/true);
      multiply<O>(tile_rows, keys, cols, d_score, panel, q_right + i * keys, keys,
                  dk + (first + s) * keys, keys, /*add=*/true);
    };
    const auto add_dq = [&](int64_t i, int64_t cols, int64_t depth, int64_t from) {
      multiply<O>(keys, cols, depth, k_turned, most, right + right_index<O>(0, from, panel), panel,
                  dq_turned + (i / panel * keys * panel + i % panel), panel, /*add=*/true);
    };
    for_strips<O>(
        n, [&](int64_t s, int64_t strip) { tile(s, strip, first + s, n - s, s, /*diagonal=*/0); });
    for_strips<O>(n, [&](int64_t s, int64_t strip) { add_dq(first + s, strip, s + strip, s); });
    for (int64_t i = first + n, cols; i < rows; i += cols) {
      cols = std::min(rows, (i / panel + 1) * panel) - i;
      tile(0, n, i, cols, 0, -kNoDiagonal);
      add_dq(i, cols, n, 0);
    }
  }
  for (int64_t i = 0; i < rows; i += panel) {
    pack_left_transposed<A>(dq_turned + i * keys, keys, std::min(panel, rows - i), panel,
                            dq + i * keys, keys);
  }
}

template class AttentionBlocks<float, float>;
template class AttentionBlocks<Bfloat16, Bfloat16>;
template class AttentionBlocks<Bfloat16, float>;
template class AttentionBlocks<double, double>;
template void attention_head_backward<float, float>(const AttentionHead<float>&, float*, float*,
                                                    float*);
template void attention_head_backward<Bfloat16, Bfloat16>(const AttentionHead<Bfloat16>&, float*,
                                                          float*, float*);
template void attention_head_backward<Bfloat16, float>(const AttentionHead<Bfloat16>&, float*,
                                                       float*, float*);
template void attention_head_backward<double, double>(const AttentionHead<double>&, double*,
                                                      double*, double*);

}  // namespace hopmix::kernels

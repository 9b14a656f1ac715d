#include "hopmix/ops/attention_blocks.h"

#include <cmath>
#include <limits>

namespace hopmix::ops {

using kernels::Bfloat16;

template <typename T, typename O>
AttentionBlocks<T, O>::AttentionBlocks(const kernels::MatrixView<T>& k, const kernels::MatrixView<T>& v,
                                                 double scale)
    : rows_(kernels::padded(k.rows)),
      keys_(kernels::padded(k.cols)),
      values_(kernels::padded(std::max<int64_t>(v.cols, 1))),
      panel_(std::clamp<int64_t>(rows_, kernels::kTileLanes, 256)),
      factor_(static_cast<A>(std::abs(scale) * 1.44269504088896340736)),
      sign_(static_cast<A>((scale > 0) - (scale < 0))),
      columns_((rows_ + panel_ - 1) / panel_ * panel_ * keys_),
      right_(rows_ * values_) {
  const kernels::Buffer<O> left(panel_ * std::max(keys_, values_));
  for (int64_t j = 0; j < rows_; j += panel_) {
    const int64_t n = std::min(panel_, rows_ - j);
    kernels::pack_left<O>(k, j, n, keys_, left);
    kernels::pack_columns<O>(left, n, keys_, columns_ + column(j), panel_);
    kernels::pack_left<O>(v, j, n, values_, left);
    kernels::pack_right<O>(left, n, values_, right_ + j * values_);
  }
}

template <typename T, typename O>
AttentionBlocks<T, O>::Block::Block(const AttentionBlocks& of)
    : q(kBlock * of.keys_),
      p(kMixed ? kBlock * of.panel_ : 0),
      scores(kBlock * of.panel_ + kernels::kTileLanes),
      largest(kBlock),
      sum(kBlock),
      mix(kBlock * of.values_),
      lse(kBlock),
      stride(of.values_) {}

template <typename T, typename O>
void AttentionBlocks<T, O>::scores_of(int64_t rows, int64_t cols, int64_t from,
                                                const Block& block) const {
  kernels::multiply<O>(rows, cols, keys_, block.q, keys_, columns_ + column(from), panel_,
                     block.scores, panel_, /*add=*/false);
}

// The block's own triangle, from the weights of its tile. A product of a strip of rows takes what
// comes before the strip; its own rows go one by one, so that no later value is multiplied by 0,
// which infinity and NaN would survive.
template <typename T, typename O>
void AttentionBlocks<T, O>::add_diagonal(int64_t first, int64_t rows,
                                                   const Block& block) const {
  const O* p;
  if constexpr (kMixed) {
    p = block.p;
  } else {
    p = block.scores;
  }
  const O* right = right_ + first * values_;
  constexpr int64_t kStep = std::is_same_v<O, Bfloat16> ? 2 : 1;
  for (int64_t s = 0; s < rows; s += kSmall) {
    A* strip = block.mix + s * values_;
    if (s > 0) {
      kernels::multiply<O>(kSmall, values_, s, p + s * panel_, panel_, right, values_, strip, values_,
                         /*add=*/true);
    }
    for (int64_t i = s; i < s + kSmall; ++i) {
      A* mix = block.mix + i * values_;
      for (int64_t j = s; j <= i; ++j) {
        const A weight = kernels::convert<A>(p[i * panel_ + j]);
        const O* value = right + kernels::right_index<O>(j, 0, values_);
#pragma omp simd
        for (int64_t c = 0; c < values_; ++c) mix[c] += weight * kernels::convert<A>(value[kStep * c]);
      }
    }
  }
}

template <typename T, typename O>
void AttentionBlocks<T, O>::forward(const kernels::MatrixView<T>& q, int64_t first, bool self,
                                              Block& out, kernels::TopScores<A>& best) const {
  const int64_t n = std::min(kBlock, rows_ - first);
  kernels::pack_left<O>(q, first, n, keys_, out.q);
  if (sign_ != 1) {
    for (int64_t x = 0; x < n * keys_; ++x) out.q[x] = kernels::convert<O>(sign_ * kernels::convert<A>(out.q[x]));
  }
  std::fill_n(out.largest + 0, n, -std::numeric_limits<A>::infinity());
  std::fill_n(out.sum + 0, n, A{0});
  std::fill_n(out.mix + 0, n * values_, A{0});
  best.clear();
  const auto add_tile = [&](int64_t from, int64_t cols, int64_t own, int64_t selected) {
    const kernels::ScoreTile<A> tile{out.scores, n, cols, panel_, factor_};
    scores_of(n, cols, from, out);
    best.offer(tile, selected, from);
    const auto weigh = [&](O* p) {
      tiles_.softmax(tile, own, p, panel_, out.largest, out.sum, out.mix, values_);
      if (own != kernels::kNoDiagonal) return;
      kernels::multiply<O>(n, values_, cols, p, panel_, right_ + from * values_, values_, out.mix,
                         values_, /*add=*/true);
    };
    if constexpr (kMixed) {
      weigh(out.p);
    } else {
      weigh(out.scores);
    }
  };
  for (int64_t from = 0; from < first; from += panel_) {
    add_tile(from, std::min(panel_, first - from), kernels::kNoDiagonal, kernels::kNoDiagonal);
  }
  add_tile(first, n, 1, self ? 1 : 0);
  add_diagonal(first, n, out);
  for (int64_t i = 0; i < n; ++i) {
    const A inverse = 1 / out.sum[i];
    A* mix = out.mix + i * values_;
#pragma omp simd
    for (int64_t c = 0; c < values_; ++c) mix[c] *= inverse;
    out.lse[i] = out.largest[i] + std::log2(out.sum[i]);
  }
}

template class AttentionBlocks<float, float>;
template class AttentionBlocks<Bfloat16, Bfloat16>;
template class AttentionBlocks<Bfloat16, float>;
template class AttentionBlocks<double, double>;

}  // namespace hopmix::ops

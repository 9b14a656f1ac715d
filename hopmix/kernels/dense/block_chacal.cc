#include "hopmix/kernels/dense/block_chacal.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hopmix/kernels/base/vec.h"
#include "hopmix/kernels/dense/dense_heads.h"
#include "hopmix/kernels/dense/triangular.h"

namespace hopmix::kernels {
namespace {

int64_t cube_root_up(int64_t n) {
  int64_t b = 1;
  while (b * b * b < n) ++b;
  return b;
}

// The blocks of one sequence, and how its matrices are padded. Rows of X, L and their like have one
// column more than values, for what belongs to the summary.
struct Layout {
  int64_t length, block, blocks, key_width, value_width;
  double scale;

  template <typename T>
  Layout(const BlockChacalInputs<T>& in, const Sequence& s)
      : length(s.length),
        block(std::clamp<int64_t>(in.block > 0 ? in.block : cube_root_up(length), 1, length)),
        blocks((length + block - 1) / block),
        key_width(in.key_width),
        value_width(in.value_width),
        scale(in.scale) {}

  int64_t rows() const { return padded(block); }
  int64_t summaries() const { return padded(blocks); }
  int64_t keys() const { return padded(key_width); }
  int64_t values() const { return padded(value_width); }
  int64_t wide() const { return padded(value_width + 1); }
  int64_t tokens(int64_t b) const { return std::min(block, length - b * block); }

  DenseShape dense(int64_t width) const {
    return {blocks, key_width, width, /*self=*/false, scale};
  }
};

template <typename T>
MatrixView<T> block_of(const MatrixView<T>& x, const Layout& at, int64_t b) {
  return {x.data + b * at.block * x.stride, at.tokens(b), x.cols, x.stride};
}

// Queries and keys of a block, and its scores; memory for one block at a time.
template <typename T>
struct BlockScores {
  using A = Accumulator<T>;

  explicit BlockScores(const Layout& layout)
      : at(layout),
        factor(static_cast<A>(layout.scale * 1.44269504088896340736)),
        q(at.rows() * at.keys()),
        k(at.rows() * at.keys()),
        columns(at.rows() * at.keys()),
        scores(at.rows() * at.rows()),
        summary(at.rows()) {}

  // `transposed`: rows are keys, columns queries. summary_i is the scaled score of s.
  void make(const MatrixView<T>& queries, const MatrixView<T>& keys, int64_t b, const A* s,
            bool transposed) const {
    const int64_t n = at.rows(), width = at.keys();
    pack_left<A>(block_of(queries, at, b), 0, n, width, q + 0);
    pack_left<A>(block_of(keys, at, b), 0, n, width, k + 0);
    pack_columns<A>(transposed ? q : k, n, width, columns + 0, n);
    VisibleProducts<A>::make(n, width, transposed ? k : q, columns, transposed, scores);
    for (int64_t i = 0; i < n; ++i) summary[i] = factor * dot<A>(q + i * width, s, width);
  }

  ScoreTile<A> tile() const { return {scores, at.rows(), at.rows(), at.rows(), factor}; }

  const Layout& at;
  A factor;
  Buffer<A> q, k, columns, scores, summary;
};

// The mean over a block of rows as of `rows`, in `to`; the last block's, which nothing reads, is
// over as many.
template <typename A>
void add_mean(const A* rows, int64_t stride, int64_t n, int64_t block, int64_t width, A* to) {
  std::fill_n(to, width, A{0});
  for (int64_t i = 0; i < n; ++i) axpy<A>(1, rows + i * stride, to, width);
  for (int64_t c = 0; c < width; ++c) to[c] /= static_cast<A>(block);
}

// First queries and mean keys of all blocks, [summaries, keys].
template <typename T>
struct Summaries {
  using A = Accumulator<T>;

  Summaries(const Layout& layout, const MatrixView<T>& queries, const MatrixView<T>& keys)
      : q(zeros<A>(layout.summaries() * layout.keys())),
        k(zeros<A>(layout.summaries() * layout.keys())),
        blocks(layout.blocks),
        width(layout.keys()) {
    const Buffer<A> rows(layout.rows() * width);
    for (int64_t b = 0; b < blocks; ++b) {
      pack_left<A>(block_of(queries, layout, b), 0, 1, width, q + b * width);
      pack_left<A>(block_of(keys, layout, b), 0, layout.tokens(b), width, rows + 0);
      add_mean<A>(rows, width, layout.tokens(b), layout.block, width, k + b * width);
    }
  }

  MatrixView<A> first_queries() const { return {q, blocks, width, width}; }
  MatrixView<A> mean_keys() const { return {k, blocks, width, width}; }

  Buffer<A> q, k;
  int64_t blocks, width;
};

template <typename A>
void copy_rows(const A* from, int64_t from_stride, int64_t n, int64_t width, A* to,
               int64_t to_stride) {
  for (int64_t i = 0; i < n; ++i) std::copy_n(from + i * from_stride, width, to + i * to_stride);
}

// One query head of one sequence. y, mix and lse are those of its first token.
template <typename T>
void head_forward(const BlockChacalInputs<T>& in, const Layout& at, const MatrixView<T>& q,
                  const MatrixView<T>& k, const MatrixView<T>& v, T* y,
                  const DenseKept<Accumulator<T>>& kept) {
  using A = Accumulator<T>;
  constexpr A kInfinity = std::numeric_limits<A>::infinity();
  const int64_t rows = at.rows(), keys = at.keys(), values = at.values(), wide = at.wide();
  const A gamma = static_cast<A>(in.gamma), share = static_cast<A>(1 - in.gamma);
  const Summaries<T> summaries(at, q, k);

  const Buffer<A> s(at.summaries() * keys);
  DenseBlocks<A, A>(at.dense(at.key_width))
      .forward(
          summaries.first_queries(), summaries.mean_keys(),
          [&](const DenseRows<A>& of) {
            std::copy_n(summaries.k + of.first * keys, of.n * keys, of.w);
          },
          [&](const DenseRows<A>& of) { std::copy_n(of.mix, of.n * keys, s + of.first * keys); });

  // [X | u] and what is mixed of it, A [X | u] + [0 | A_s], block by block.
  const Buffer<A> mixed(at.length * wide), mean(at.blocks * wide);
  {
    const BlockScores<T> scores(at);
    const Buffer<A> largest(rows), sum(rows), gate(rows), mix(rows * wide), w(rows * wide);
    for (int64_t b = 0; b < at.blocks; ++b) {
      const int64_t n = at.tokens(b), first = b * at.block;
      scores.make(q, k, b, s + b * keys, /*transposed=*/false);
      pack_left<A>(block_of(v, at, b), 0, rows, wide, w + 0);
      std::fill_n(mix + 0, rows * wide, A{0});
      // The online softmax starts with the summary's weight.
      for (int64_t i = 0; i < rows; ++i) {
        const bool reads = i < n && b > 0 && scores.summary[i] != -kInfinity;
        largest[i] = reads ? scores.summary[i] : -kInfinity;
        sum[i] = mix[i * wide + at.value_width] = reads ? 1 : 0;
        gate[i] = i < n ? gamma : 0;
      }
      tiles<A, A>().softmax(scores.tile(), /*diagonal=*/1, scores.scores, rows, largest, sum, mix,
                            wide);
      solve_lower<A>(rows, wide, /*self=*/true, scores.scores, rows, sum, gate, mix, w);
      std::copy_n(mix + 0, n * wide, mixed + first * wide);
      add_mean<A>(w, wide, n, at.block, wide, mean + b * wide);
      for (int64_t i = 0; i < n; ++i) {
        kept.lse[(first + i) * in.heads] = largest[i] + std::log2(sum[i]);
      }
    }
  }

  const Buffer<A> r(at.summaries() * values);
  DenseBlocks<A, A>(at.dense(at.value_width))
      .forward(
          summaries.first_queries(), summaries.mean_keys(),
          [&](const DenseRows<A>& of) {
            for (int64_t i = 0; i < of.n && of.first + i < at.blocks; ++i) {
              const A* row = mean + (of.first + i) * wide;
              of.gate[i] = row[at.value_width];
              std::copy_n(row, at.value_width, of.w + i * values);
            }
          },
          [&](const DenseRows<A>& of) {
            std::copy_n(of.mix, of.n * values, r + of.first * values);
          });
  for (int64_t i = 0; i < at.length; ++i) {
    const A *row = mixed + i * wide, *read = r + i / at.block * values;
    const int64_t to = i * in.heads * at.value_width;
    // The first block reads no summary, whose r is 0.
    const A weight = row[at.value_width];
#pragma omp simd
    for (int64_t c = 0; c < at.value_width; ++c) {
      const A mix = row[c] + weight * read[c];
      kept.mix[to + c] = mix;
      y[to + c] = static_cast<T>(share * mix);
    }
  }
}

// One query head: what its backward pass is made of, and sums over a group's heads.
template <typename T>
struct HeadGradients {
  using A = Accumulator<T>;
  A *q, *k;  // [length, keys], null if not wanted; q written, k added to
  A* v;      // [length, values], added to
};

template <typename T>
void head_backward(const BlockChacalInputs<T>& in, const Layout& at, const MatrixView<T>& q,
                   const MatrixView<T>& k, const MatrixView<T>& v, const MatrixView<T>& grad_y,
                   const DenseKept<const Accumulator<T>>& kept, const HeadGradients<T>& out) {
  using A = Accumulator<T>;
  constexpr A kInfinity = std::numeric_limits<A>::infinity();
  const int64_t rows = at.rows(), keys = at.keys(), values = at.values(), wide = at.wide();
  const int64_t count = at.summaries(), last = at.value_width;  // the column of the summary
  const A gamma = static_cast<A>(in.gamma), share = static_cast<A>(1 - in.gamma);
  const A scale = static_cast<A>(at.scale);
  const bool wanted = out.q != nullptr;
  const Summaries<T> summaries(at, q, k);
  const BlockScores<T> scores(at);

  // Rows of a block: kept mix, W, and dLoss/dmix as given, M.
  const Buffer<A> mix(rows * values), w(rows * values), m(rows * values);
  const auto load = [&](int64_t b) {
    const int64_t first = b * at.block;
    const MatrixView<A> kept_mix = {const_cast<A*>(kept.mix), at.length, at.value_width,
                                    in.heads * at.value_width};
    pack_left<A>(block_of(kept_mix, at, b), 0, rows, values, mix + 0);
    pack_left<A>(block_of(v, at, b), 0, rows, values, w + 0);
    pack_left<A>(block_of(grad_y, at, b), 0, rows, values, m + 0);
    for (int64_t x = 0; x < rows * values; ++x) {
      w[x] += gamma * mix[x];
      m[x] *= share;
    }
    return first;
  };
  const Buffer<A> lse(rows), gate(rows);
  // The block's scores, keys by queries, its lse, and the weights of its summary.
  const Buffer<A> of_summary(rows);
  const auto make_scores = [&](int64_t b, const A* s) {
    const int64_t n = at.tokens(b);
    scores.make(q, k, b, s, /*transposed=*/true);
    for (int64_t i = 0; i < rows; ++i) {
      lse[i] = i < n ? kept.lse[(b * at.block + i) * in.heads] : kInfinity;
      gate[i] = i < n ? gamma : 0;
      const A x = scores.summary[i] - lse[i];
      of_summary[i] = i < n && b > 0 ? std::exp2(x > 0 ? 0 : x) : 0;  // as TileTable::weights
    }
  };

  // What blocks read: [s | r], and the lse of that softmax.
  const int64_t both = keys + values;
  const Buffer<A> read(count * both), mean(count * values), lse_of_blocks(count);
  std::fill_n(mean + 0, count * values, A{0});
  for (int64_t b = 0; b < at.blocks; ++b) {
    load(b);
    add_mean<A>(w, values, at.tokens(b), at.block, values, mean + b * values);
  }
  DenseBlocks<A, A>(at.dense(both))
      .forward(
          summaries.first_queries(), summaries.mean_keys(),
          [&](const DenseRows<A>& of) {
            copy_rows<A>(summaries.k + of.first * keys, keys, of.n, keys, of.w, both);
            copy_rows<A>(mean + of.first * values, values, of.n, values, of.w + keys, both);
          },
          [&](const DenseRows<A>& of) {
            std::copy_n(of.mix, of.n * both, read + of.first * both);
            std::copy_n(of.lse, of.n, lse_of_blocks + of.first);
          });

  // [l0 | lambda] of all rows, and of blocks [rho0 | ubar].
  const Buffer<A> l(at.length * wide), sent = zeros<A>(count * wide);
  {
    const Buffer<A> l_block(rows * wide), h(rows * wide);
    for (int64_t b = 0; b < at.blocks; ++b) {
      const int64_t n = at.tokens(b), first = load(b);
      make_scores(b, read + b * both);
      tiles<A, A>().weights(scores.tile(), /*diagonal=*/0, lse, scores.scores, rows);
      std::fill_n(l_block + 0, rows * wide, A{0});
      std::fill_n(h + 0, rows * wide, A{0});
      copy_rows<A>(m, values, n, at.value_width, h + 0, wide);
      for (int64_t i = 0; i < n; ++i) l_block[i * wide + last] = 1 / static_cast<A>(at.block);
      solve_lower_backward<A>(rows, wide, /*self=*/true, scores.scores, rows, gate, l_block, h);
      std::copy_n(l_block + 0, n * wide, l + first * wide);
      for (int64_t i = 0; i < n; ++i) {
        axpy<A>(of_summary[i], h + i * wide, sent + b * wide, wide);
      }
    }
  }

  // The recurrence of the summaries, back: g = dLoss/dwbar.
  const Buffer<A> g(count * values), dk_mean(wanted ? count * keys : 0);
  const Buffer<A> dq_first(wanted ? count * keys : 0);
  DenseBlocks<A, A>(at.dense(at.value_width))
      .backward(
          summaries.first_queries(), summaries.mean_keys(),
          [&](const DenseRows<A>& of) {
            for (int64_t i = 0; i < of.n && of.first + i < at.blocks; ++i) {
              const int64_t b = of.first + i;
              of.gate[i] = sent[b * wide + last];
              of.lse[i] = lse_of_blocks[b];
              std::copy_n(sent + b * wide, at.value_width, of.h + i * values);
              std::copy_n(mean + b * values, values, of.w + i * values);
              std::copy_n(read + b * both + keys, values, of.mix + i * values);
            }
          },
          [&](const DenseRows<A>& of) {
            std::copy_n(of.l, of.n * values, g + of.first * values);
            if (wanted) std::copy_n(of.dk, of.n * keys, dk_mean + of.first * keys);
          },
          dq_first);

  // Totals, and the scores.
  const Buffer<A> total(rows * values), h(rows * values), columns(wanted ? rows * values : 0);
  const Buffer<A> grad(wanted ? rows * rows : 0), turned(wanted ? rows * rows : 0), delta(rows);
  const Buffer<A> ds = zeros<A>(wanted ? count * keys : 0), dq(wanted ? rows * keys : 0);
  const Buffer<A> dk(wanted ? rows * keys : 0), r(values);
  for (int64_t b = 0; b < at.blocks; ++b) {
    const int64_t n = at.tokens(b), first = load(b);
    std::fill_n(total + 0, rows * values, A{0});
    for (int64_t i = 0; i < n; ++i) {
      A* row = total + i * values;
      std::copy_n(l + (first + i) * wide, at.value_width, row);
      axpy<A>(l[(first + i) * wide + last], g + b * values, row, values);
      axpy<A>(1, row, out.v + (first + i) * values, values);
    }
    if (!wanted) continue;
    // The weights of a row sum to 1, so W may be counted from any origin: its mean keeps digits.
    const A* origin = mean + b * values;
    for (int64_t c = 0; c < values; ++c) r[c] = read[b * both + keys + c] - origin[c];
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = i * values;
      for (int64_t c = 0; c < values; ++c) {
        h[row + c] = m[row + c] + gamma * total[row + c];
        w[row + c] = i < n ? w[row + c] - origin[c] : 0;
        mix[row + c] -= origin[c];
      }
      delta[i] = i < n ? dot<A>(h + row, mix + row, values) : 0;
    }
    make_scores(b, read + b * both);
    pack_columns<A>(h, rows, values, columns + 0, rows);
    VisibleProducts<A>::make(rows, values, w, columns, /*transposed=*/true, grad);
    tiles<A, A>().softmax_backward(scores.tile(), /*diagonal=*/0, lse, delta, grad, scores.scores,
                                   grad, nullptr);
    VisibleProducts<A>::apply(rows, keys, grad, scores.q, /*transposed=*/true, dk, /*add=*/false);
    pack_columns<A>(grad, rows, rows, turned + 0, rows);
    VisibleProducts<A>::apply(rows, keys, turned, scores.k, /*transposed=*/false, dq,
                              /*add=*/false);
    for (int64_t i = 0; i < n; ++i) {
      A *dq_row = out.q + (first + i) * keys, *dk_row = out.k + (first + i) * keys;
      std::copy_n(dq + i * keys, keys, dq_row);
      if (b > 0) {
        const A d_score = of_summary[i] * (dot<A>(h + i * values, r, values) - delta[i]);
        axpy<A>(d_score, read + b * both, dq_row, keys);
        axpy<A>(scale * d_score, scores.q + i * keys, ds + b * keys, keys);
      }
      for (int64_t c = 0; c < keys; ++c) dq_row[c] *= scale;
      axpy<A>(scale, dk + i * keys, dk_row, keys);
    }
  }
  if (!wanted) return;

  // s = sum of weights times mean keys.
  const Buffer<A> dq_of_s(count * keys);
  DenseBlocks<A, A>(at.dense(at.key_width))
      .backward(
          summaries.first_queries(), summaries.mean_keys(),
          [&](const DenseRows<A>& of) {
            for (int64_t i = 0; i < of.n && of.first + i < at.blocks; ++i) {
              const int64_t b = of.first + i;
              of.lse[i] = lse_of_blocks[b];
              std::copy_n(ds + b * keys, keys, of.h + i * keys);
              std::copy_n(summaries.k + b * keys, keys, of.w + i * keys);
              std::copy_n(read + b * both, keys, of.mix + i * keys);
            }
          },
          [&](const DenseRows<A>& of) {
            for (int64_t x = 0; x < of.n * keys; ++x) {
              dk_mean[of.first * keys + x] += of.dk[x] + of.l[x];
            }
          },
          dq_of_s);
  for (int64_t b = 0; b < at.blocks; ++b) {
    const int64_t first = b * at.block;
    axpy<A>(1, dq_first + b * keys, out.q + first * keys, keys);
    axpy<A>(1, dq_of_s + b * keys, out.q + first * keys, keys);
    for (int64_t i = 0; i < at.tokens(b); ++i) {
      axpy<A>(1 / static_cast<A>(at.block), dk_mean + b * keys, out.k + (first + i) * keys, keys);
    }
  }
}

template <typename T>
DenseCall<T> call_of(const BlockChacalInputs<T>& in) {
  return {in.q,           in.k,          in.heads, in.kv_heads, in.key_width,
          in.value_width, /*self=*/true, in.scale, in.sequences};
}

}  // namespace

template <typename T>
void block_chacal(const BlockChacalInputs<T>& in, T* y, const DenseKept<Accumulator<T>>& kept) {
  const DenseCall<T> call = call_of(in);
  parallel_tasks(in.sequences.count() * in.heads, call.entries(), [&](int64_t task) {
    const Sequence& s = in.sequences.list[task / in.heads];
    if (s.length == 0) return;
    const int64_t head = task % in.heads, kv_head = head / call.group();
    const int64_t token = in.sequences.first_token(s);
    const int64_t row = head_offset(token, in.heads, head, in.value_width);
    head_forward<T>(in, Layout(in, s), call.queries(s, head), call.keys(s, kv_head),
                    call.rows(in.v, s, in.kv_heads, kv_head, in.value_width), y + row,
                    {kept.mix + row, kept.lse + head_offset(token, in.heads, head, 1)});
    release_gemm();
  });
}

template <typename T>
void block_chacal_backward(const BlockChacalInputs<T>& in, const T* grad_y,
                           const DenseKept<const Accumulator<T>>& kept,
                           const ChacalGradients<T>& out) {
  using A = Accumulator<T>;
  const DenseCall<T> call = call_of(in);
  const int64_t heads = in.heads, kv_heads = in.kv_heads, width = in.value_width;
  const bool scores = out.q != nullptr || out.k != nullptr;
  parallel_tasks(in.sequences.count() * kv_heads, call.entries(), [&](int64_t task) {
    const Sequence& s = in.sequences.list[task / kv_heads];
    if (s.length == 0) return;
    const Layout at(in, s);
    const int64_t kv_head = task % kv_heads, token = in.sequences.first_token(s);
    const int64_t keys = at.keys(), values = at.values(), n = s.length;
    const Buffer<A> dv = zeros<A>(n * values), dk = zeros<A>(scores ? n * keys : 0);
    const Buffer<A> dq(scores ? n * keys : 0);
    for (int64_t head = kv_head * call.group(); head < (kv_head + 1) * call.group(); ++head) {
      const int64_t row = head_offset(token, heads, head, width);
      head_backward<T>(
          in, at, call.queries(s, head), call.keys(s, kv_head),
          call.rows(in.v, s, kv_heads, kv_head, width), call.rows(grad_y, s, heads, head, width),
          {kept.mix + row, kept.lse + head_offset(token, heads, head, 1)}, {dq, dk, dv});
      store_rows<T>(dq + 0, keys, token, n, out.q, heads, head, in.key_width);
    }
    store_rows<T>(dk + 0, keys, token, n, out.k, kv_heads, kv_head, in.key_width);
    store_rows<T>(dv + 0, values, token, n, out.v, kv_heads, kv_head, width);
    release_gemm();
  });
}

template void block_chacal(const BlockChacalInputs<float>&, float*, const DenseKept<float>&);
template void block_chacal(const BlockChacalInputs<double>&, double*, const DenseKept<double>&);
template void block_chacal(const BlockChacalInputs<Bfloat16>&, Bfloat16*, const DenseKept<float>&);
template void block_chacal_backward(const BlockChacalInputs<float>&, const float*,
                                    const DenseKept<const float>&, const ChacalGradients<float>&);
template void block_chacal_backward(const BlockChacalInputs<double>&, const double*,
                                    const DenseKept<const double>&, const ChacalGradients<double>&);
template void block_chacal_backward(const BlockChacalInputs<Bfloat16>&, const Bfloat16*,
                                    const DenseKept<const float>&,
                                    const ChacalGradients<Bfloat16>&);

}  // namespace hopmix::kernels

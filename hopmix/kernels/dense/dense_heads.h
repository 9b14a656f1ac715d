// Runs DenseBlocks over all heads of all sequences of a call: threads, head buffers, grouped
// queries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/base/sequences.h"
#include "hopmix/kernels/dense/dense_blocks.h"

namespace hopmix::kernels {

/// Queries and keys of a call, contiguous. Query head h reads key/value head h / (H / G).
template <typename T>
struct DenseCall {
  const T* q;           // [B, T, H, DK]
  const T* k;           // [B, T, G, DK]
  int64_t heads;        // H, a multiple of G
  int64_t kv_heads;     // G
  int64_t key_width;    // DK
  int64_t value_width;  // DV
  bool self;            // whether a token reads itself
  double scale;
  const Sequences& sequences;

  int64_t group() const { return heads / kv_heads; }
  int64_t entries() const { return sequences.tokens() * heads * value_width; }

  DenseShape shape(const Sequence& s) const {
    return {s.length, key_width, value_width, self, scale};
  }

  MatrixView<T> queries(const Sequence& s, int64_t head) const {
    return rows(q, s, heads, head, key_width);
  }
  MatrixView<T> keys(const Sequence& s, int64_t head) const {
    return rows(k, s, kv_heads, head, key_width);
  }

  /// One head of one sequence from x [B, T, of, width].
  MatrixView<T> rows(const T* x, const Sequence& s, int64_t of, int64_t which,
                     int64_t width) const {
    const int64_t first = head_offset(sequences.first_token(s), of, which, width);
    return {x + first, s.length, width, of * width};
  }
};

/// A block of rows of one head: tokens [first_token, first_token + length). Matrices are [rows,
/// values], zero-padded; rows past `length` and columns past the head's width do not belong to the
/// operator.
template <typename A>
struct HeadWork {
  int64_t first_token, length, head, kv_head, values;
  A *gate, *w, *mix, *lse;
  A *l = nullptr, *h = nullptr, *dv = nullptr;  // backward; dv is summed over the group's heads

  /// Offset of token i's row in a tensor [tokens, heads, width].
  int64_t at(int64_t i, int64_t heads, int64_t which, int64_t width) const {
    return head_offset(first_token + i, heads, which, width);
  }
};

/// Rows [first, first + n) of one head into `to` [tokens, of, width], which may be null.
template <typename T, typename A>
void store_rows(const A* from, int64_t stride, int64_t first, int64_t n, T* to, int64_t of,
                int64_t which, int64_t width) {
  if (to == nullptr) return;
  for (int64_t i = 0; i < n; ++i) {
    T* out = to + head_offset(first + i, of, which, width);
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) out[c] = static_cast<T>(from[i * stride + c]);
  }
}

template <typename A>
Buffer<A> zeros(int64_t size) {
  Buffer<A> out(size);
  std::fill_n(out + 0, size, A{0});
  return out;
}

/// prepare(work) fills gate and w (with c); finish(work) stores w, mix and lse. Both are called for
/// each block.
template <typename T, typename O, typename Prepare, typename Finish>
void dense_forward(const DenseCall<T>& call, const Prepare& prepare, const Finish& finish) {
  using A = Accumulator<T>;
  const int64_t heads = call.heads;
  parallel_tasks(call.sequences.count() * heads, call.entries(), [&](int64_t task) {
    const Sequence& s = call.sequences.list[task / heads];
    if (s.length == 0) return;
    const int64_t head = task % heads, kv_head = head / call.group();
    const DenseShape shape = call.shape(s);
    const auto work = [&](const DenseRows<A>& rows) {
      return HeadWork<A>{call.sequences.first_token(s) + rows.first,
                         std::min(rows.n, s.length - rows.first),
                         head,
                         kv_head,
                         shape.values(),
                         rows.gate,
                         rows.w,
                         rows.mix,
                         rows.lse};
    };
    DenseBlocks<T, O>(shape).forward(
        call.queries(s, head), call.keys(s, kv_head),
        [&](const DenseRows<A>& rows) { prepare(work(rows)); },
        [&](const DenseRows<A>& rows) { finish(work(rows)); });
  });
}

/// Output gradients, each with the shape of its input; null skips one.
template <typename T>
struct DenseGradients {
  T *q = nullptr, *k = nullptr, *v = nullptr;
};

/// prepare(work) fills gate, w, mix, lse and the direct gradients l and h; finish(work) gets the
/// total gradients, adds to dv and stores those of the head. Both are called for each block,
/// prepare possibly twice.
template <typename T, typename O, typename Prepare, typename Finish>
void dense_backward(const DenseCall<T>& call, const DenseGradients<T>& out, const Prepare& prepare,
                    const Finish& finish) {
  using A = Accumulator<T>;
  const int64_t heads = call.heads, kv_heads = call.kv_heads, group = call.group();
  const bool scores = out.q != nullptr || out.k != nullptr;
  parallel_tasks(call.sequences.count() * kv_heads, call.entries(), [&](int64_t task) {
    const Sequence& s = call.sequences.list[task / kv_heads];
    if (s.length == 0) return;
    const int64_t kv_head = task % kv_heads, first_token = call.sequences.first_token(s);
    const DenseShape shape = call.shape(s);
    const int64_t rows = shape.rows(), keys = shape.keys(), values = shape.values();
    constexpr int64_t kBlock = DenseBlocks<T, O>::kBlock;
    // Stored for the whole sequence only if heads are summed into it.
    const Buffer<A> dv_sum = zeros<A>((group > 1 ? rows : kBlock) * values);
    const Buffer<A> dk_sum = zeros<A>(scores && group > 1 ? rows * keys : 0);
    // dq is computed in its tensor if that has this layout.
    const bool in_place = out.q != nullptr && std::is_same_v<T, A> && heads == 1 &&
                          rows == s.length && keys == call.key_width;
    const Buffer<A> dq_head(scores && !in_place ? rows * keys : 0);
    A* dq_rows = scores ? dq_head + 0 : nullptr;
    if constexpr (std::is_same_v<T, A>) {
      if (in_place) dq_rows = out.q + first_token * keys;
    }
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const auto work = [&](const DenseRows<A>& block) {
        return HeadWork<A>{first_token + block.first,
                           std::min(block.n, s.length - block.first),
                           head,
                           kv_head,
                           values,
                           block.gate,
                           block.w,
                           block.mix,
                           block.lse,
                           block.l,
                           block.h,
                           dv_sum + (group > 1 ? block.first * values : 0)};
      };
      const auto done = [&](const DenseRows<A>& block) {
        const HeadWork<A> all = work(block);
        if (group == 1) std::fill_n(all.dv, block.n * values, A{0});
        finish(all);
        const A* dk_rows = block.dk;
        if (scores && group > 1) {
          A* sum = dk_sum + block.first * keys;
          for (int64_t x = 0; x < block.n * keys; ++x) sum[x] += block.dk[x];
          dk_rows = sum;
        }
        if (head + 1 < (kv_head + 1) * group) return;
        store_rows(dk_rows, keys, all.first_token, all.length, out.k, kv_heads, kv_head,
                   call.key_width);
        store_rows(all.dv, values, all.first_token, all.length, out.v, kv_heads, kv_head,
                   call.value_width);
      };
      DenseBlocks<T, O>(shape).backward(
          call.queries(s, head), call.keys(s, kv_head),
          [&](const DenseRows<A>& block) { prepare(work(block)); }, done, dq_rows);
      if (!in_place) {
        store_rows(dq_rows, keys, first_token, s.length, out.q, heads, head, call.key_width);
      }
    }
  });
}

}  // namespace hopmix::kernels

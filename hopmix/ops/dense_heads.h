// DenseBlocks over all heads of all sequences of a call: threads, head buffers, grouped queries.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/dense_blocks.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {

/// A block of rows of one head at work: tokens [first_token, first_token + length). Matrices are
/// [rows, values], padded with 0; rows past `length` and columns past the head's width are not the
/// operator's.
template <typename A>
struct HeadWork {
  int64_t first_token, length, head, kv_head, values;
  A *gate, *w, *mix, *lse;
  A *l = nullptr, *h = nullptr, *dv = nullptr;  // backward; dv is summed over the group's heads

  /// Offset of token i's row in a tensor [tokens, heads, width].
  int64_t at(int64_t i, int64_t heads, int64_t which, int64_t width) const {
    return kernels::head_offset(first_token + i, heads, which, width);
  }
};

/// What a call works on; q and k are contiguous.
struct DenseCall {
  Tensor q, k;
  int64_t heads, kv_heads, keys, values;
  bool self;
  double scale;
  kernels::Sequences sequences;

  DenseCall(const Arguments& args, const Tensor& queries, const Tensor& keys_, bool reads_self,
            std::optional<double> factor, const std::optional<Tensor>& cu_seqlens)
      : q(queries.contiguous()),
        k(keys_.contiguous()),
        heads(args.size("H")),
        kv_heads(args.size("G")),
        keys(args.size("DK")),
        values(args.size("DV")),
        self(reads_self),
        scale(args.scale(factor)),
        sequences(bind_sequences(args, cu_seqlens)) {}

  int64_t group() const { return heads / kv_heads; }
  int64_t entries() const { return sequences.tokens() * heads * values; }

  DenseShape shape(const kernels::Sequence& s) const {
    return {s.length, keys, values, self, scale};
  }

  template <typename T>
  kernels::MatrixView<T> view(const Tensor& x, const kernels::Sequence& s, int64_t of, int64_t which) const {
    const int64_t first = sequences.first_token(s);
    return {read<T>(x) + kernels::head_offset(first, of, which, keys), s.length, keys, of * keys};
  }
};

template <typename A>
kernels::Buffer<A> zeros(int64_t size) {
  kernels::Buffer<A> out(size);
  std::fill_n(out + 0, size, A{0});
  return out;
}

/// prepare(work) fills gate and w (with c); finish(work) stores w, mix and lse. Both are called for
/// each block.
template <typename T, typename O, typename Prepare, typename Finish>
void dense_forward(const DenseCall& call, const Prepare& prepare, const Finish& finish) {
  using A = kernels::Accumulator<T>;
  const int64_t heads = call.heads;
  kernels::parallel_tasks(call.sequences.count() * heads, call.entries(), [&](int64_t task) {
    const kernels::Sequence& s = call.sequences.list[task / heads];
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
        call.view<T>(call.q, s, heads, head), call.view<T>(call.k, s, call.kv_heads, kv_head),
        [&](const DenseRows<A>& rows) { prepare(work(rows)); },
        [&](const DenseRows<A>& rows) { finish(work(rows)); });
  });
}

/// prepare(work) fills gate, w, mix, lse and the direct gradients l and h; finish(work) gets the
/// total ones, adds to dv and stores what belongs to the head. Both are called for each block,
/// prepare perhaps twice. dq, dk and dv may be undefined.
template <typename T, typename O, typename Prepare, typename Finish>
void dense_backward(const DenseCall& call, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                    const Prepare& prepare, const Finish& finish) {
  using A = kernels::Accumulator<T>;
  const int64_t heads = call.heads, kv_heads = call.kv_heads, group = call.group();
  const bool scores = dq.defined() || dk.defined();
  kernels::parallel_tasks(call.sequences.count() * kv_heads, call.entries(), [&](int64_t task) {
    const kernels::Sequence& s = call.sequences.list[task / kv_heads];
    if (s.length == 0) return;
    const int64_t kv_head = task % kv_heads, first_token = call.sequences.first_token(s);
    const DenseShape shape = call.shape(s);
    const int64_t rows = shape.rows(), keys = shape.keys(), values = shape.values();
    constexpr int64_t kBlock = DenseBlocks<T, O>::kBlock;
    // Of the whole sequence only where heads sum into them.
    const kernels::Buffer<A> dv_sum = zeros<A>((group > 1 ? rows : kBlock) * values);
    const kernels::Buffer<A> dk_sum = zeros<A>(scores && group > 1 ? rows * keys : 0);
    // dq is made in its tensor if it lies there as here.
    const bool in_place =
        dq.defined() && std::is_same_v<T, A> && heads == 1 && rows == s.length && keys == call.keys;
    const kernels::Buffer<A> dq_head(scores && !in_place ? rows * keys : 0);
    A* dq_rows = scores ? dq_head + 0 : nullptr;
    if constexpr (std::is_same_v<T, A>) {
      if (in_place) dq_rows = write<T>(dq) + first_token * keys;
    }
    const auto store = [&](const Tensor& to, int64_t first, int64_t n, const A* from, int64_t of,
                           int64_t which, int64_t width, int64_t stride) {
      if (!to.defined()) return;
      for (int64_t i = 0; i < n; ++i) {
        T* out = write<T>(to) + kernels::head_offset(first_token + first + i, of, which, width);
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) out[c] = static_cast<T>(from[i * stride + c]);
      }
    };
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
        store(dk, block.first, all.length, dk_rows, kv_heads, kv_head, call.keys, keys);
        store(dv, block.first, all.length, all.dv, kv_heads, kv_head, call.values, values);
      };
      DenseBlocks<T, O>(shape).backward(
          call.view<T>(call.q, s, heads, head), call.view<T>(call.k, s, kv_heads, kv_head),
          [&](const DenseRows<A>& block) { prepare(work(block)); }, done, dq_rows);
      if (!in_place) store(dq, 0, s.length, dq_rows, heads, head, call.keys, keys);
    }
  });
}

/// The gradient tensor if it is wanted, else an undefined one.
inline Tensor if_wanted(bool wanted, const Tensor& t) { return wanted ? t : Tensor(); }

}  // namespace hopmix::ops

// DenseBlocks over all heads of all sequences of a call: threads, head buffers, grouped queries.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/kernels/index.h"
#include "hopmix/kernels/parallel.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/dense_blocks.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {

/// One head of one sequence at work. Matrices are [rows, values], padded with 0; rows past `length`
/// and columns past the head's width are not the operator's.
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
  MatrixView<T> view(const Tensor& x, const kernels::Sequence& s, int64_t of, int64_t which) const {
    const int64_t first = sequences.first_token(s);
    return {read<T>(x) + kernels::head_offset(first, of, which, keys), s.length, keys, of * keys};
  }
};

template <typename A>
Buffer<A> zeros(int64_t size) {
  Buffer<A> out(size);
  std::fill_n(out + 0, size, A{0});
  return out;
}

/// prepare(work) fills gate and w (with c); finish(work) stores w, mix and lse.
template <typename T, typename O, typename Products, typename Prepare, typename Finish>
void dense_forward(const DenseCall& call, const Prepare& prepare, const Finish& finish) {
  using A = kernels::Accumulator<T>;
  const int64_t heads = call.heads;
  kernels::parallel_tasks(call.sequences.count() * heads, call.entries(), [&](int64_t task) {
    const kernels::Sequence& s = call.sequences.list[task / heads];
    if (s.length == 0) return;
    const int64_t head = task % heads, kv_head = head / call.group();
    const DenseShape shape = call.shape(s);
    const int64_t rows = shape.rows(), entries = rows * shape.values();
    const Buffer<A> gate = zeros<A>(rows), w = zeros<A>(entries), mix(entries), lse(rows);
    const HeadWork<A> work{
        call.sequences.first_token(s), s.length, head, kv_head, shape.values(), gate, w, mix, lse};
    prepare(work);
    DenseBlocks<T, O, Products>(shape).forward(call.view<T>(call.q, s, heads, head),
                                               call.view<T>(call.k, s, call.kv_heads, kv_head),
                                               gate, w, mix, lse);
    finish(work);
  });
}

/// prepare(work) fills gate, w, mix, lse and the direct gradients l and h; finish(work) gets the
/// total ones, adds to dv and stores what belongs to the head. dq, dk and dv may be undefined.
template <typename T, typename O, typename Products, typename Prepare, typename Finish>
void dense_backward(const DenseCall& call, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                    const Prepare& prepare, const Finish& finish) {
  using A = kernels::Accumulator<T>;
  const int64_t heads = call.heads, kv_heads = call.kv_heads, group = call.group();
  const bool scores = dq.defined() || dk.defined();
  kernels::parallel_tasks(call.sequences.count() * kv_heads, call.entries(), [&](int64_t task) {
    const kernels::Sequence& s = call.sequences.list[task / kv_heads];
    if (s.length == 0) return;
    const int64_t kv_head = task % kv_heads;
    const DenseShape shape = call.shape(s);
    const int64_t rows = shape.rows(), keys = shape.keys(), entries = rows * shape.values();
    const Buffer<A> gate = zeros<A>(rows), lse(rows);
    const Buffer<A> w = zeros<A>(entries), mix = zeros<A>(entries);
    const Buffer<A> l(entries), h(entries), dv_sum = zeros<A>(entries);
    const Buffer<A> dq_head(scores ? rows * keys : 0), dk_head(scores ? rows * keys : 0);
    const Buffer<A> dk_sum = zeros<A>(scores && group > 1 ? rows * keys : 0);
    std::fill_n(lse + 0, rows, std::numeric_limits<A>::infinity());  // nothing in the padding
    HeadWork<A> work{call.sequences.first_token(s),
                     s.length,
                     0,
                     kv_head,
                     shape.values(),
                     gate,
                     w,
                     mix,
                     lse,
                     l,
                     h,
                     dv_sum};
    const auto store = [&](const Tensor& to, const A* from, int64_t of, int64_t which,
                           int64_t width, int64_t stride) {
      if (!to.defined()) return;
      for (int64_t i = 0; i < s.length; ++i) {
        T* out = write<T>(to) + work.at(i, of, which, width);
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) out[c] = static_cast<T>(from[i * stride + c]);
      }
    };
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      work.head = head;
      std::fill_n(l + 0, entries, A{0});
      std::fill_n(h + 0, entries, A{0});
      prepare(work);
      DenseBlocks<T, O, Products>(shape).backward(
          call.view<T>(call.q, s, heads, head), call.view<T>(call.k, s, kv_heads, kv_head), gate, w,
          mix, lse, l, h, scores ? dq_head + 0 : nullptr, scores ? dk_head + 0 : nullptr);
      finish(work);
      store(dq, dq_head, heads, head, call.keys, keys);
      if (scores && group > 1) {
        for (int64_t c = 0; c < rows * keys; ++c) dk_sum[c] += dk_head[c];
      }
    }
    store(dk, group > 1 ? dk_sum : dk_head, kv_heads, kv_head, call.keys, keys);
    store(dv, dv_sum, kv_heads, kv_head, call.values, shape.values());
  });
}

/// The gradient tensor if it is wanted, else an undefined one.
inline Tensor if_wanted(bool wanted, const Tensor& t) { return wanted ? t : Tensor(); }

}  // namespace hopmix::ops

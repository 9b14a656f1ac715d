// Recurrences with a matrix state, chunk by chunk: all heads of all sequences of a call, threads,
// grouped queries, tiles in and out, states handed from chunk to chunk.
//
// What one operator computes in a chunk is its Rule, made anew for each head of each sequence (so
// its members may be scratch). States are [keys(), values()] in A, 0 in the padding. A Rule has
//
//   forward(chunk, tiles, state)           tiles.o, and the state before the chunk becomes that
//                                          after it
//   advance(chunk, tiles, state)           the same without o and q, which are null
//   backward(chunk, tiles, state, d, d_state)
//                                          with the state before the chunk and d.o: d.q, d.k, d.v;
//                                          the gradient of the state after the chunk becomes that
//                                          of the state before it
//
// and writes the gradients of the operator's other inputs itself. Backward keeps the states between
// the chunks of one head, T / kChunk of them, which it computes again. A Rule with kOwnStates keeps
// its states itself, is handed none (null), and has none before the first token; advance() is
// called for all chunks but the last, then backward() from the last to the first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "hopmix/kernels/chunked/chunk_loops.h"
#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/ops/checks.h"
#include "hopmix/kernels/base/operands.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {

/// Tokens of a chunk.
inline constexpr int64_t kChunk = 64;

/// Tokens [token, token + length), counted over batch and time, of one query head.
struct Chunk {
  int64_t token, length, head, kv_head;
  bool last;  // of its sequence

  /// Rows of its tiles: those past `length` are 0.
  int64_t rows() const { return kernels::padded(length); }
};

/// q and k [rows, keys()], q times the scale; v and o [rows, values()]. Padded with 0, but for o.
template <typename A>
struct ChunkTiles {
  const A *q, *k, *v;
  A* o;
};

/// `o` is given, the others are asked for, or null: not wanted. d.q is for the scaled q.
template <typename A>
struct ChunkGradients {
  const A* o;
  A *q, *k, *v;
};

/// What a call works on. Tensors are contiguous: q [B,T,H,DK], k [B,T,G,DK], v [B,T,G,DV].
struct ChunkedCall {
  Tensor q, k, v;
  std::optional<Tensor> initial_state;  // [N,H,DK,DV]
  int64_t heads, kv_heads, key_width, value_width;
  double scale;
  kernels::Sequences sequences;

  ChunkedCall(const Arguments& args, const Tensor& q_, const Tensor& k_, const Tensor& v_,
              std::optional<double> factor, const std::optional<Tensor>& initial,
              const std::optional<Tensor>& cu_seqlens)
      : q(q_),
        k(k_),
        v(v_),
        initial_state(initial),
        heads(args.size("H")),
        kv_heads(args.size("G")),
        key_width(args.size("DK")),
        value_width(args.size("DV")),
        scale(args.scale(factor)),
        sequences(bind_sequences(args, cu_seqlens)) {}

  int64_t group() const { return heads / kv_heads; }
  int64_t keys() const { return kernels::padded(key_width); }
  int64_t values() const { return kernels::padded(value_width); }
  int64_t state_size() const { return keys() * values(); }
  /// Whether states have no padding.
  bool whole() const { return keys() == key_width && values() == value_width; }
  int64_t entries() const { return sequences.tokens() * heads * (key_width + value_width); }
  /// Rows of the largest chunk.
  int64_t rows() const { return kernels::padded(std::min(kChunk, sequences.longest())); }

  /// Offset of a sequence's state of one head in [N,H,DK,DV].
  int64_t state_offset(int64_t sequence, int64_t head) const {
    return (sequence * heads + head) * key_width * value_width;
  }
};

/// Whether a Rule keeps its states itself.
template <typename MakeRule>
inline constexpr bool kOwnStates = requires {
  std::invoke_result_t<MakeRule>::kOwnStates;
};

/// The gradients of q, k, v [like the inputs] and of the initial state; undefined: not wanted.
struct ChunkedGradients {
  Tensor q, k, v, initial_state;
};

/// Where a chunk's rows of one head lie in a tensor [tokens, heads, width].
struct HeadRows {
  int64_t heads, head, width;

  int64_t first(const Chunk& chunk) const {
    return kernels::head_offset(chunk.token, heads, head, width);
  }
  int64_t stride() const { return heads * width; }
};

/// to [rows, padded width] = factor * the chunk's rows of x, and 0.
template <typename T, typename A>
void load_tile(const T* x, const HeadRows& at, const Chunk& chunk, A factor, A* to) {
  kernels::tile_loops<T>().load(x + at.first(chunk), at.stride(), chunk.length, at.width, factor,
                                to, chunk.rows(), kernels::padded(at.width));
}

/// The reverse: the chunk's rows of x = factor * from.
template <typename T, typename A>
void store_tile(const A* from, const HeadRows& at, const Chunk& chunk, A factor, T* x) {
  kernels::tile_loops<T>().store(from, kernels::padded(at.width), chunk.length, at.width, factor,
                                 x + at.first(chunk), at.stride());
}

/// A state of the call [DK,DV] into one of a rule, or zeros.
template <typename A>
void load_state(const ChunkedCall& call, const A* from, A* to) {
  if (from == nullptr || !call.whole()) std::fill_n(to, call.state_size(), A{0});
  if (from == nullptr) return;
  for (int64_t c = 0; c < call.key_width; ++c) {
    std::copy_n(from + c * call.value_width, call.value_width, to + c * call.values());
  }
}

template <typename A>
void store_state(const ChunkedCall& call, const A* from, A* to) {
  for (int64_t c = 0; c < call.key_width; ++c) {
    std::copy_n(from + c * call.values(), call.value_width, to + c * call.value_width);
  }
}

/// Calls body(chunk) for the chunks of a sequence's head, in order or backwards.
template <typename Body>
void for_chunks(const ChunkedCall& call, const kernels::Sequence& s, int64_t head, bool backwards,
                const Body& body) {
  const int64_t count = (s.length + kChunk - 1) / kChunk;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t first = (backwards ? count - 1 - n : n) * kChunk;
    body(Chunk{call.sequences.first_token(s) + first, std::min(kChunk, s.length - first), head,
               head / call.group(), first + kChunk >= s.length},
         first / kChunk);
  }
}

/// make() gives a Rule. o [B,T,H,DV], state [N,H,DK,DV], or undefined where the Rule has its own.
/// Sequences of one token are left out if they are `stepped`.
template <typename T, typename MakeRule>
void chunked_forward(const ChunkedCall& call, const MakeRule& make, const Tensor& o,
                     const Tensor& state, bool stepped = false) {
  using A = kernels::Accumulator<T>;
  const int64_t heads = call.heads, tasks = call.sequences.count() * heads;
  kernels::parallel_tasks(tasks, call.entries(), [&](int64_t task) {
    const kernels::Sequence& s = call.sequences.list[task / heads];
    if (stepped && s.length == 1) return;
    const int64_t head = task % heads, offset = call.state_offset(task / heads, head);
    const int64_t rows = call.rows();
    const kernels::Buffer<A> q(rows * call.keys()), k(rows * call.keys());
    const kernels::Buffer<A> v(rows * call.values()), out(rows * call.values());
    // The state advances where it will be, unless it needs padding.
    const bool hands = !kOwnStates<MakeRule>;
    const kernels::Buffer<A> wide(hands && !call.whole() ? call.state_size() : 0);
    A* const last = hands ? write<A>(state) + offset : nullptr;
    A* const at = call.whole() ? last : wide.data();
    auto rule = make();
    if (hands) {
      load_state<A>(call, call.initial_state ? read<A>(*call.initial_state) + offset : nullptr, at);
    }
    for_chunks(call, s, head, /*backwards=*/false, [&](const Chunk& chunk, int64_t) {
      const HeadRows keys{call.kv_heads, chunk.kv_head, call.key_width};
      load_tile(read<T>(call.q), {heads, head, call.key_width}, chunk, static_cast<A>(call.scale),
                q.data());
      load_tile(read<T>(call.k), keys, chunk, A{1}, k.data());
      load_tile(read<T>(call.v), {call.kv_heads, chunk.kv_head, call.value_width}, chunk, A{1},
                v.data());
      rule.forward(chunk, ChunkTiles<A>{q.data(), k.data(), v.data(), out.data()}, at);
      store_tile(out.data(), {heads, head, call.value_width}, chunk, A{1}, write<T>(o));
    });
    if (hands && !call.whole()) store_state<A>(call, at, last);
  });
}

/// grad_o [B,T,H,DV] or undefined for zero; grad_state [N,H,DK,DV] or undefined.
template <typename T, typename MakeRule>
void chunked_backward(const ChunkedCall& call, const MakeRule& make, const Tensor& grad_o,
                      const Tensor& grad_state, const ChunkedGradients& out) {
  using A = kernels::Accumulator<T>;
  const int64_t heads = call.heads, kv_heads = call.kv_heads, group = call.group();
  const int64_t keys = call.keys(), values = call.values(), rows = call.rows();
  kernels::parallel_tasks(call.sequences.count() * kv_heads, call.entries(), [&](int64_t task) {
    const kernels::Sequence& s = call.sequences.list[task / kv_heads];
    const int64_t kv_head = task % kv_heads;
    const HeadRows key_rows{kv_heads, kv_head, call.key_width};
    const HeadRows value_rows{kv_heads, kv_head, call.value_width};
    const kernels::Buffer<A> q(rows * keys), k(rows * keys), v(rows * values), d_o(rows * values);
    const kernels::Buffer<A> dq(out.q.defined() ? rows * keys : 0);
    // Over the heads of a group the gradients of k and v are summed, so they are kept whole.
    const int64_t kept = group > 1 ? kernels::padded(s.length) : rows;
    const kernels::Buffer<A> dk(out.k.defined() ? kept * keys : 0);
    const kernels::Buffer<A> dv(out.v.defined() ? kept * values : 0);
    const kernels::Buffer<A> dk_head(group > 1 && out.k.defined() ? rows * keys : 0);
    const kernels::Buffer<A> dv_head(group > 1 && out.v.defined() ? rows * values : 0);
    const int64_t handed = kOwnStates<MakeRule> ? 0 : call.state_size();
    const kernels::Buffer<A> states((s.length + kChunk - 1) / kChunk * handed);
    const kernels::Buffer<A> at(handed);
    const auto load_keys_and_values = [&](const Chunk& chunk) {
      load_tile(read<T>(call.k), key_rows, chunk, A{1}, k.data());
      load_tile(read<T>(call.v), value_rows, chunk, A{1}, v.data());
    };
    // One chunk's gradient of k or v: stored, or added up until the last head of the group.
    const auto hand_over = [&](const Tensor& to, const A* part, A* sum, const HeadRows& where,
                               const Chunk& chunk, int64_t first) {
      if (!to.defined()) return;
      if (group > 1) {
        const int64_t ld = kernels::padded(where.width), size = chunk.length * ld;
        A* all = sum + first * ld;
        const bool is_first = chunk.head == kv_head * group;
#pragma omp simd
        for (int64_t x = 0; x < size; ++x) all[x] = is_first ? part[x] : all[x] + part[x];
        if (chunk.head + 1 < (kv_head + 1) * group) return;
        part = all;
      }
      store_tile(part, where, chunk, A{1}, write<T>(to));
    };
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      auto rule = make();
      const int64_t offset = call.state_offset(task / kv_heads, head);
      if (handed > 0) {
        load_state<A>(call, call.initial_state ? read<A>(*call.initial_state) + offset : nullptr,
                      at.data());
      }
      for_chunks(call, s, head, /*backwards=*/false, [&](const Chunk& chunk, int64_t n) {
        std::copy_n(at.data(), handed, states.data() + n * handed);
        if (chunk.last) return;  // nobody reads the state behind it
        load_keys_and_values(chunk);
        rule.advance(chunk, ChunkTiles<A>{nullptr, k.data(), v.data(), nullptr}, at.data());
      });
      if (handed > 0) {
        load_state<A>(call, grad_state.defined() ? read<A>(grad_state) + offset : nullptr,
                      at.data());
      }
      for_chunks(call, s, head, /*backwards=*/true, [&](const Chunk& chunk, int64_t n) {
        load_keys_and_values(chunk);
        load_tile(read<T>(call.q), {heads, head, call.key_width}, chunk, static_cast<A>(call.scale),
                  q.data());
        if (grad_o.defined()) {
          load_tile(read<T>(grad_o), {heads, head, call.value_width}, chunk, A{1}, d_o.data());
        } else {
          std::fill_n(d_o.data(), chunk.rows() * values, A{0});
        }
        A* const dk_part = group > 1 ? dk_head.data() : dk.data();
        A* const dv_part = group > 1 ? dv_head.data() : dv.data();
        rule.backward(chunk, ChunkTiles<A>{q.data(), k.data(), v.data(), nullptr},
                      states.data() + n * handed,
                      ChunkGradients<A>{d_o.data(), dq.data(), dk_part, dv_part}, at.data());
        if (out.q.defined()) {
          store_tile(dq.data(), {heads, head, call.key_width}, chunk, static_cast<A>(call.scale),
                     write<T>(out.q));
        }
        hand_over(out.k, dk_part, dk.data(), key_rows, chunk, n * kChunk);
        hand_over(out.v, dv_part, dv.data(), value_rows, chunk, n * kChunk);
      });
      if (out.initial_state.defined()) {
        store_state<A>(call, at.data(), write<A>(out.initial_state) + offset);
      }
    }
  });
}

}  // namespace hopmix::ops

// Recurrences with a matrix state, chunk by chunk: loops over all heads and sequences of a call,
// threads, grouped queries, loading and storing tiles, and passing states from chunk to chunk.
//
// The computation of one operator in a chunk is its Rule, constructed for each head of each
// sequence (so its members may be scratch). States are [keys(), values()] in A, 0 in the padding. A
// Rule has
//
//   forward(chunk, tiles, state)           computes tiles.o; turns the state before the chunk into
//                                          the one after it
//   advance(chunk, tiles, state)           the same without o and q, which are null
//   backward(chunk, tiles, state, d, d_state)
//                                          computes d.q, d.k and d.v from the state before the
//                                          chunk and d.o; turns the gradient of the state after the
//                                          chunk into that of the state before it
//
// and writes the gradients of the operator's other inputs itself. The backward stores the states
// between the chunks of one head, T / kChunk of them, which it recomputes. A Rule with kOwnStates
// stores its states itself: it receives null and has no state before the first token. Then
// advance() is called for all chunks except the last, and backward() from the last to the first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/operands.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/chunked/chunk_loops.h"
#include "hopmix/kernels/chunked/matrix_state.h"
#include "hopmix/kernels/decode/matrix_step.h"

namespace hopmix::kernels {

/// Tokens of a chunk.
inline constexpr int64_t kChunk = 64;

/// Tokens [token, token + length), counted over batch and time, of one query head.
struct Chunk {
  int64_t token, length, head, kv_head;
  bool last;  // of its sequence

  /// The number of rows of its tiles; rows past `length` are 0.
  int64_t rows() const { return padded(length); }
};

/// q and k [rows, keys()], q times the scale; v and o [rows, values()]. Zero-padded, except for o.
template <typename A>
struct ChunkTiles {
  const A *q, *k, *v;
  A* o;
};

/// `o` is an input; the others are outputs, or null if not wanted. d.q is for the scaled q.
template <typename A>
struct ChunkGradients {
  const A* o;
  A *q, *k, *v;
};

/// The sizes of a call.
struct ChunkedSizes {
  int64_t heads, kv_heads, key_width, value_width;
  const Sequences& sequences;

  template <typename T>
  explicit ChunkedSizes(const MatrixStateInputs<T>& in)
      : heads(in.heads),
        kv_heads(in.kv_heads),
        key_width(in.key_width),
        value_width(in.value_width),
        sequences(in.sequences) {}

  int64_t group() const { return heads / kv_heads; }
  int64_t keys() const { return padded(key_width); }
  int64_t values() const { return padded(value_width); }
  int64_t state_size() const { return keys() * values(); }
  /// Whether states have no padding.
  bool whole() const { return keys() == key_width && values() == value_width; }
  int64_t entries() const { return sequences.tokens() * heads * (key_width + value_width); }
  /// Rows of the largest chunk.
  int64_t rows() const { return padded(std::min(kChunk, sequences.longest())); }

  /// Offset of a sequence's state of one head in [N,H,DK,DV].
  int64_t state_offset(int64_t sequence, int64_t head) const {
    return (sequence * heads + head) * key_width * value_width;
  }
};

/// Whether a Rule stores its states itself.
template <typename MakeRule>
inline constexpr bool kOwnStates = requires {
  std::invoke_result_t<MakeRule>::kOwnStates;
};

/// The location of a chunk's rows of one head in a tensor [tokens, heads, width].
struct HeadRows {
  int64_t heads, head, width;

  int64_t first(const Chunk& chunk) const { return head_offset(chunk.token, heads, head, width); }
  int64_t stride() const { return heads * width; }
};

/// to [rows, padded width] = factor * the chunk's rows of x, and 0.
template <typename T, typename A>
void load_tile(const T* x, const HeadRows& at, const Chunk& chunk, A factor, A* to) {
  tile_loops<T>().load(x + at.first(chunk), at.stride(), chunk.length, at.width, factor, to,
                       chunk.rows(), padded(at.width));
}

/// The inverse: the chunk's rows of x = factor * from.
template <typename T, typename A>
void store_tile(const A* from, const HeadRows& at, const Chunk& chunk, A factor, T* x) {
  tile_loops<T>().store(from, padded(at.width), chunk.length, at.width, factor, x + at.first(chunk),
                        at.stride());
}

/// Loads a state of the call [DK,DV] into one of a rule, or zeros.
template <typename A>
void load_state(const ChunkedSizes& sizes, const A* from, A* to) {
  if (from == nullptr || !sizes.whole()) std::fill_n(to, sizes.state_size(), A{0});
  if (from == nullptr) return;
  for (int64_t c = 0; c < sizes.key_width; ++c) {
    std::copy_n(from + c * sizes.value_width, sizes.value_width, to + c * sizes.values());
  }
}

template <typename A>
void store_state(const ChunkedSizes& sizes, const A* from, A* to) {
  for (int64_t c = 0; c < sizes.key_width; ++c) {
    std::copy_n(from + c * sizes.values(), sizes.value_width, to + c * sizes.value_width);
  }
}

/// Calls body(chunk) for the chunks of a sequence's head, in order or in reverse.
template <typename Body>
void for_chunks(const ChunkedSizes& sizes, const Sequence& s, int64_t head, bool backwards,
                const Body& body) {
  const int64_t count = (s.length + kChunk - 1) / kChunk;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t first = (backwards ? count - 1 - n : n) * kChunk;
    body(Chunk{sizes.sequences.first_token(s) + first, std::min(kChunk, s.length - first), head,
               head / sizes.group(), first + kChunk >= s.length},
         first / kChunk);
  }
}

/// o and state for sequences of one token, as in decoding.
template <typename T>
void step_single_tokens(const MatrixStateInputs<T>& in, T* o, Accumulator<T>* state) {
  const auto& all = in.sequences.list;
  const auto single = [](const Sequence& s) { return s.length == 1; };
  if (std::any_of(all.begin(), all.end(), single)) matrix_step(in, o, state);
}

/// make() returns a Rule. o [B,T,H,DV]; state [N,H,DK,DV], or null if the Rule stores its own. If
/// it does not, sequences of one token are skipped: see step_single_tokens().
template <typename T, typename MakeRule>
void chunked_forward(const MatrixStateInputs<T>& in, const MakeRule& make, T* o,
                     Accumulator<T>* state) {
  using A = Accumulator<T>;
  const ChunkedSizes sizes(in);
  const int64_t heads = sizes.heads, tasks = sizes.sequences.count() * heads;
  parallel_tasks(tasks, sizes.entries(), [&](int64_t task) {
    const Sequence& s = sizes.sequences.list[task / heads];
    if (!kOwnStates<MakeRule> && s.length == 1) return;
    const int64_t head = task % heads, offset = sizes.state_offset(task / heads, head);
    const int64_t rows = sizes.rows();
    const Buffer<A> q(rows * sizes.keys()), k(rows * sizes.keys());
    const Buffer<A> v(rows * sizes.values()), out(rows * sizes.values());
    // The state advances in its final location, unless it needs padding.
    const bool hands = !kOwnStates<MakeRule>;
    const Buffer<A> wide(hands && !sizes.whole() ? sizes.state_size() : 0);
    A* const last = hands ? state + offset : nullptr;
    A* const at = sizes.whole() ? last : wide.data();
    auto rule = make();
    if (hands) {
      load_state<A>(sizes, in.initial_state ? in.initial_state + offset : nullptr, at);
    }
    for_chunks(sizes, s, head, /*backwards=*/false, [&](const Chunk& chunk, int64_t) {
      const HeadRows keys{sizes.kv_heads, chunk.kv_head, sizes.key_width};
      load_tile(in.q, {heads, head, sizes.key_width}, chunk, static_cast<A>(in.scale), q.data());
      load_tile(in.k, keys, chunk, A{1}, k.data());
      load_tile(in.v, {sizes.kv_heads, chunk.kv_head, sizes.value_width}, chunk, A{1}, v.data());
      rule.forward(chunk, ChunkTiles<A>{q.data(), k.data(), v.data(), out.data()}, at);
      store_tile(out.data(), {heads, head, sizes.value_width}, chunk, A{1}, o);
    });
    if (hands && !sizes.whole()) store_state<A>(sizes, at, last);
  });
}

/// grad_o [B,T,H,DV] and grad_state [N,H,DK,DV], either of which may be null for zero.
template <typename T, typename MakeRule>
void chunked_backward(const MatrixStateInputs<T>& in, const MakeRule& make, const T* grad_o,
                      const Accumulator<T>* grad_state, const MatrixStateGradients<T>& out) {
  using A = Accumulator<T>;
  const ChunkedSizes sizes(in);
  const int64_t heads = sizes.heads, kv_heads = sizes.kv_heads, group = sizes.group();
  const int64_t keys = sizes.keys(), values = sizes.values(), rows = sizes.rows();
  parallel_tasks(sizes.sequences.count() * kv_heads, sizes.entries(), [&](int64_t task) {
    const Sequence& s = sizes.sequences.list[task / kv_heads];
    const int64_t kv_head = task % kv_heads;
    const HeadRows key_rows{kv_heads, kv_head, sizes.key_width};
    const HeadRows value_rows{kv_heads, kv_head, sizes.value_width};
    const Buffer<A> q(rows * keys), k(rows * keys), v(rows * values), d_o(rows * values);
    const Buffer<A> dq(out.q != nullptr ? rows * keys : 0);
    // The gradients of k and v are summed over the heads of a group, so they are stored whole.
    const int64_t kept = group > 1 ? padded(s.length) : rows;
    const Buffer<A> dk(out.k != nullptr ? kept * keys : 0);
    const Buffer<A> dv(out.v != nullptr ? kept * values : 0);
    const Buffer<A> dk_head(group > 1 && out.k != nullptr ? rows * keys : 0);
    const Buffer<A> dv_head(group > 1 && out.v != nullptr ? rows * values : 0);
    const int64_t handed = kOwnStates<MakeRule> ? 0 : sizes.state_size();
    const Buffer<A> states((s.length + kChunk - 1) / kChunk * handed);
    const Buffer<A> at(handed);
    const auto load_keys_and_values = [&](const Chunk& chunk) {
      load_tile(in.k, key_rows, chunk, A{1}, k.data());
      load_tile(in.v, value_rows, chunk, A{1}, v.data());
    };
    // One chunk's gradient of k or v: stored, or accumulated until the last head of the group.
    const auto hand_over = [&](T* to, const A* part, A* sum, const HeadRows& where,
                               const Chunk& chunk, int64_t first) {
      if (to == nullptr) return;
      if (group > 1) {
        const int64_t ld = padded(where.width), size = chunk.length * ld;
        A* all = sum + first * ld;
        const bool is_first = chunk.head == kv_head * group;
#pragma omp simd
        for (int64_t x = 0; x < size; ++x) all[x] = is_first ? part[x] : all[x] + part[x];
        if (chunk.head + 1 < (kv_head + 1) * group) return;
        part = all;
      }
      store_tile(part, where, chunk, A{1}, to);
    };
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      auto rule = make();
      const int64_t offset = sizes.state_offset(task / kv_heads, head);
      if (handed > 0) {
        load_state<A>(sizes, in.initial_state ? in.initial_state + offset : nullptr, at.data());
      }
      for_chunks(sizes, s, head, /*backwards=*/false, [&](const Chunk& chunk, int64_t n) {
        std::copy_n(at.data(), handed, states.data() + n * handed);
        if (chunk.last) return;  // nothing reads the state behind it
        load_keys_and_values(chunk);
        rule.advance(chunk, ChunkTiles<A>{nullptr, k.data(), v.data(), nullptr}, at.data());
      });
      if (handed > 0) {
        load_state<A>(sizes, grad_state != nullptr ? grad_state + offset : nullptr, at.data());
      }
      for_chunks(sizes, s, head, /*backwards=*/true, [&](const Chunk& chunk, int64_t n) {
        load_keys_and_values(chunk);
        load_tile(in.q, {heads, head, sizes.key_width}, chunk, static_cast<A>(in.scale), q.data());
        if (grad_o != nullptr) {
          load_tile(grad_o, {heads, head, sizes.value_width}, chunk, A{1}, d_o.data());
        } else {
          std::fill_n(d_o.data(), chunk.rows() * values, A{0});
        }
        A* const dk_part = group > 1 ? dk_head.data() : dk.data();
        A* const dv_part = group > 1 ? dv_head.data() : dv.data();
        rule.backward(chunk, ChunkTiles<A>{q.data(), k.data(), v.data(), nullptr},
                      states.data() + n * handed,
                      ChunkGradients<A>{d_o.data(), dq.data(), dk_part, dv_part}, at.data());
        if (out.q != nullptr) {
          store_tile(dq.data(), {heads, head, sizes.key_width}, chunk, static_cast<A>(in.scale),
                     out.q);
        }
        hand_over(out.k, dk_part, dk.data(), key_rows, chunk, n * kChunk);
        hand_over(out.v, dv_part, dv.data(), value_rows, chunk, n * kChunk);
      });
      if (out.initial_state != nullptr) {
        store_state<A>(sizes, at.data(), out.initial_state + offset);
      }
    }
  });
}

}  // namespace hopmix::kernels
